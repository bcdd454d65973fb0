"""Attention whose scores are no products: it weights tokens by a score of each, and often sums them into one row."""

from __future__ import annotations

import pytest
from attentions_with_caches import findings, written

from heedful.conformance import check

pytestmark = pytest.mark.slow

# A vector of each document, of the kind of hierarchical attention.
DOCUMENT = '''
import torch
import torch.nn.functional as F
from torch import nn

class Attention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.project = nn.Linear(hidden_size, hidden_size)
        self.context = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, words, word_mask):
        """
        :param words: (batch, length, hidden)
        :param word_mask: (batch, length), 1 for words and 0 for padding
        """
        u = torch.tanh(self.project(words))
        energy = self.context(u).squeeze(2)
        energy = energy.masked_fill(word_mask == 0, float("-inf"))
        alpha = F.softmax(energy, dim=1)
        return torch.bmm(alpha.unsqueeze(1), words).squeeze(1), alpha
'''

# Statistics of the frames of an utterance, under several heads.
UTTERANCE = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, channels, heads=2, p=0.1):
        super().__init__()
        self.scorer = nn.Sequential(nn.Linear(channels, 12), nn.ReLU(), nn.Linear(12, heads))
        self.norm = nn.Softmax(dim=1)
        self.drop = nn.Dropout(p)

    def forward(self, frames: torch.Tensor, mask: torch.Tensor = None):
        scores = self.scorer(frames)
        if mask is not None:
            scores = scores + (1.0 - mask.to(scores.dtype))[..., None] * -1e9
        w = self.norm(scores)
        w = self.drop(w)
        mean = torch.einsum("bth,btc->bhc", w, frames)
        return mean.flatten(1)
"""

# Interactions of all pairs of the fields of a row, as recommenders weight them.
PAIRS = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, factors, p=0.3):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(factors, 8), nn.ReLU(), nn.Linear(8, 1))
        self.p, self.out = p, nn.Linear(factors, 1)

    def forward(self, fields):
        i, j = torch.triu_indices(fields.shape[1], fields.shape[1], 1)
        pairs = fields[:, i] * fields[:, j]
        w = self.score(pairs).softmax(1)
        w = nn.functional.dropout(w, self.p, self.training)
        return self.out((w * pairs).sum(1)).squeeze(-1)
"""

# One vector of the whole sequence, which every token is multiplied by.
SUMMARY = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.query, self.key = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.score = nn.Parameter(torch.randn(channels, 1))

    def forward(self, tokens):
        query, key = self.query(tokens), self.key(tokens)
        alpha = torch.softmax(query @ self.score / key.shape[-1] ** 0.5, dim=1)
        return (alpha * query).sum(1, keepdim=True) * key + query
"""

# A weight of each feature of each frame.
FEATURES = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.score = nn.Linear(channels, channels)

    def forward(self, frames):
        atten_weight = torch.tanh(self.score(frames)).softmax(dim=1)
        return (atten_weight * frames).sum(1)
"""

# The classes of frames, weighed by the attention over the frames.
CLASSES = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, channels, classes=5):
        super().__init__()
        self.score, self.classify = nn.Linear(channels, classes), nn.Linear(channels, classes)

    def forward(self, frames):
        weights = self.score(frames).softmax(dim=1)
        class_weights = self.classify(frames).softmax(dim=2)
        return (weights * class_weights).sum(1)
"""

# A summary of the tokens in each head, which all tokens are multiplied by (Wu et al. 2021).
SUMMARIES = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.combine = (nn.Linear(dim, dim) for _ in range(3))
        self.score = nn.Linear(dim, num_heads)

    def forward(self, x):
        query = self.query(x)
        weights = self.score(query).softmax(dim=1)
        heads = query.unflatten(-1, (self.num_heads, -1))
        summary = torch.einsum("bth,bthd->bhd", weights, heads).flatten(1)
        return self.combine(self.key(x) * summary[:, None])
"""

# Weights the frames by a decoder's state, which is laid beside each of them.
STATES = '''
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, enc_dim=10, dec_dim=10):
        super().__init__()
        self.W, self.V = nn.Linear(enc_dim, 8, bias=False), nn.Linear(dec_dim, 8)
        self.v = nn.Linear(8, 1, bias=False)

    def forward(self, encoder_outputs, decoder_h):
        """
        encoder_outputs: [batch, length, enc_dim]
        decoder_h: [batch, dec_dim]
        """
        B, T, _ = encoder_outputs.shape
        states = self.V(decoder_h).repeat_interleave(T, dim=0)
        energy = self.v(torch.tanh(self.W(encoder_outputs.flatten(0, 1)) + states))
        weights = energy.view(B, T).softmax(dim=1)
        return torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1), weights
'''

WRONG = [
    ("softmax-wrong-dim", SUMMARIES, "dim=1", "dim=-1", "dim=-1"),
    ("mask-fill-too-small", DOCUMENT, 'float("-inf")', "1e-9", "masked_fill"),
    (
        "mask-fill-too-small",
        DOCUMENT,
        'energy.masked_fill(word_mask == 0, float("-inf"))',
        "energy * word_mask",
        "energy * word_mask",
    ),
    ("mask-fill-too-small", UTTERANCE, "-1e9", "-2.0", "-2.0"),
    (
        "mask-after-softmax",
        DOCUMENT,
        'energy.masked_fill(word_mask == 0, float("-inf"))\n        alpha = F.softmax(energy, dim=1)',
        "F.softmax(energy, dim=1)\n        alpha = energy * word_mask",
        "alpha = energy * word_mask",
    ),
    ("softmax-wrong-dim", DOCUMENT, "dim=1", "dim=0", "dim=0"),
    ("softmax-wrong-dim", UTTERANCE, "nn.Softmax(dim=1)", "nn.Softmax(dim=0)", "nn.Softmax(dim=0)"),
    ("softmax-wrong-dim", SUMMARY, "dim=1", "dim=-1", "dim=-1"),
    ("softmax-wrong-dim", FEATURES, "dim=1", "dim=2", "dim=2"),
    ("softmax-wrong-dim", PAIRS, "softmax(1)", "softmax(0)", "softmax(0)"),
    ("mask-inverted", DOCUMENT, "word_mask == 0", "word_mask == 1", "word_mask == 1"),
    ("batch-mixed", STATES, "repeat_interleave(T, dim=0)", "repeat(T, 1)", ".repeat(T, 1)"),
    ("dropout-in-eval", PAIRS, "self.p, self.training", "self.p", "dropout(w"),
]


@pytest.mark.parametrize(
    "source", [DOCUMENT, UTTERANCE, PAIRS, SUMMARY, FEATURES, CLASSES, SUMMARIES, STATES]
)
def test_a_row_for_each_sequence_is_no_bug(tmp_path, source):
    with written(tmp_path, source) as target:
        assert [finding for finding in findings(target) if finding.level == "bug"] == []


@pytest.mark.parametrize(("name", "source", "old", "new", "line"), WRONG)
def test_a_bug_of_a_pooling_is_named_on_its_line(tmp_path, name, source, old, new, line):
    assert old in source
    with written(tmp_path, source.replace(old, new)) as target:
        (bug,) = check(target).bugs
    assert bug.name == name
    assert bug.place is not None
    assert line in bug.place.source


def test_the_remedy_names_the_dimension_of_the_tokens(tmp_path):
    with written(tmp_path, SUMMARY.replace("dim=1", "dim=-1")) as target:
        (bug,) = check(target).bugs
    assert bug.remedy == "Take the dimension of the tokens: dim=1."
