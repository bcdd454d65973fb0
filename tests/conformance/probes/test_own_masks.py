"""Masks that the target computes itself from ids of padding, that it hands on, and that an example gives."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

FROM_IDS = """import torch
from torch import nn


class Attention(nn.Module):
    '''An encoder of sentences, whose padding has the id 1.'''

    def __init__(self, vocab_size=30, d_model=24, n_heads=4):
        super().__init__()
        self.padding_idx = 1
        self.embed_tokens = nn.Embedding(vocab_size, d_model, self.padding_idx)
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.n_heads = n_heads

    def forward(self, src_tokens):
        encoder_padding_mask = src_tokens.eq(self.padding_idx)
        x = self.embed_tokens(src_tokens)
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        scores = scores.masked_fill(encoder_padding_mask[:, None, None], -1e9)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
HANDED_ON = """import torch
import torch.nn.functional as F
from torch import nn


def pooled(values, energies, hidden):
    energies = energies.masked_fill(hidden, -torch.inf)
    weights = F.softmax(energies, dim=-1)
    return torch.einsum("bt,btc->bc", weights, values)


class Attention(nn.Module):
    def __init__(self, d_model=24):
        super().__init__()
        self.score = nn.Linear(d_model, 1)

    def forward(self, x, n_real):
        '''n_real: the number of real tokens of each sequence, of shape (batch,)'''
        hidden_steps = torch.arange(x.shape[1], device=x.device) >= n_real[:, None]
        return pooled(x, self.score(x).squeeze(-1), hidden_steps)
"""
GIVEN = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x, words, word_pad):
        '''word_pad: 1 at padding and 0 at words, of shape (batch, words)'''
        scores = self.q(x) @ self.k(words).mT * x.shape[-1] ** -0.5
        scores = scores + word_pad.to(scores.dtype).unsqueeze(1) * -1e9
        return x + scores.softmax(-1) @ self.v(words)
"""

# Pools words by a class token in front of them. The mask of a call is required, and hides words from all queries.
POOLED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x, words_mask):
        '''words_mask: True at words, of shape (batch, words)'''
        keep = torch.cat([words_mask[:, :1].new_ones(len(x), 1), words_mask], 1)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        scores = self.q(x) @ self.k(x).mT * x.shape[-1] ** -0.5
        seen = keep[:, None, :].expand_as(scores)
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        return (scores.softmax(-1) @ self.v(x))[:, 0]
"""
# Reads an image once for a question of several words, whose number is known.
ASKED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width=16, ids=20):
        super().__init__()
        self.words = nn.Embedding(ids, width)
        self.score, self.read = nn.Linear(width, 1), nn.Linear(width, 1)

    def forward(self, pixels, question, question_len):
        words = self.words(question)
        padding = torch.arange(words.shape[1]) >= question_len[:, None]
        scores = self.score(words).squeeze(-1).masked_fill(padding, -torch.inf)
        asked = scores.softmax(-1)[:, None] @ words
        weights = self.read(pixels * asked).softmax(1)
        return (weights * pixels).sum(1)
"""
# Cuts each of several series into four patches, which attend to one another. The series are independent.
PATCHES = """
import torch
import torch.nn.functional as F
from torch import nn

class Patches(nn.Module):
    def __init__(self, size=6, width=16, heads=4):
        super().__init__()
        self.size, self.heads = size, heads
        self.embed, self.to_qkv = nn.Linear(size, width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, size)

    def forward(self, series, hidden=None, observed=None):
        x = series if observed is None else series * observed[:, None]
        if hidden is not None and self.training:
            x = x * ~hidden.bool()[:, None]
        x = self.embed(x.unfold(-1, self.size, self.size)).flatten(0, 1)
        q, k, v = self.to_qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = None
        if observed is not None:
            seen = observed.unfold(-1, self.size, self.size).any(-1)
            seen = seen.repeat_interleave(series.shape[1], 0)[:, None, None]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        rows = self.out(context.transpose(1, 2).flatten(2))
        return rows.flatten(1).view_as(series)

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = Patches()

    def forward(self, series, observed=None):
        '''observed: (batch, steps), 1 where there are values and 0 for padding'''
        return self.patches(series, observed=observed)
"""


def found(tmp_path, source, **options):
    with written(tmp_path, source) as target:
        report = check(target, **options)
    return [(bug.name, bug.place.source if bug.place else "") for bug in report.bugs]


@pytest.mark.parametrize(
    "edited", ["~src_tokens.eq(self.padding_idx)", "src_tokens.ne(self.padding_idx)"]
)
def test_a_mask_of_ids_hides_the_padding(tmp_path, edited):
    assert found(tmp_path, FROM_IDS) == []
    source = FROM_IDS.replace("src_tokens.eq(self.padding_idx)", edited)
    ((name, line),) = found(tmp_path, source)
    assert name == "mask-inverted"
    assert edited in line


def test_positions_must_not_be_kept_at_the_padding_alone(tmp_path):
    positions = "x = x + torch.arange(x.shape[1])[:, None] / 9 * keep[..., None]"
    source = FROM_IDS.replace(
        "        q, k, v = (f(x)",
        f"        keep = ~encoder_padding_mask\n        {positions}\n        q, k, v = (f(x)",
    )
    assert found(tmp_path, source) == []
    wrong = source.replace("keep = ~encoder_padding_mask", "keep = encoder_padding_mask")
    assert found(tmp_path, wrong) == [("mask-inverted", positions)]
    same_for_all = wrong.replace("torch.arange(x.shape[1])[:, None] / 9", "torch.full((24,), 0.5)")
    assert found(tmp_path, same_for_all) == []


def test_a_mask_that_is_handed_on_is_read(tmp_path):
    example = {"x": torch.randn(2, 6, 24), "n_real": torch.tensor([6, 4])}
    assert found(tmp_path, HANDED_ON, example=example) == []
    source = HANDED_ON.replace("    energies = energies.masked_fill(hidden, -torch.inf)\n", "")
    ((name, line),) = found(tmp_path, source, example=example)
    assert name in ("mask-unused", "padding-leak")
    assert "softmax" in line


def test_a_mask_of_an_example_has_an_effect(tmp_path):
    pad = torch.arange(5) >= torch.tensor([[5], [3]])
    example = (torch.randn(2, 6, 24), torch.randn(2, 5, 24), pad.long())
    assert found(tmp_path, GIVEN, example=example) == []
    source = GIVEN.replace("unsqueeze(1) * -1e9", "amax(-1)[:, None, None] * -100")
    ((name, _),) = found(tmp_path, source, example=example)
    assert name == "mask-unused"
    source = GIVEN.replace("word_pad.to(scores.dtype)", "(word_pad.to(scores.dtype) * 0)")
    assert found(tmp_path, source, example=example) != []


def test_a_mask_of_the_steps_of_series_must_not_be_handed_on_under_another_name(tmp_path):
    """The patches of a series are a sequence of its own: as many rows as heads are no heads."""
    real = (torch.arange(24) >= torch.tensor([[0], [9]])).long()
    example = (torch.randn(2, 3, 24), real)
    assert found(tmp_path, PATCHES, example=example) == []
    line = "return self.patches(series, hidden=observed)"
    source = PATCHES.replace("return self.patches(series, observed=observed)", line)
    assert found(tmp_path, source, example=example) == [("mask-unused", line)]


def test_a_required_mask_has_an_effect_on_the_rows_that_are_read(tmp_path):
    assert found(tmp_path, POOLED) == []
    source = POOLED.replace("keep[:, None, :]", "(keep[:, None, :] | ~keep[:, :, None])").replace(
        "new_ones(len(x), 1)", "new_zeros(len(x), 1)"
    )
    ((name, line),) = found(tmp_path, source)
    assert name == "mask-unused"
    assert "[:, 0]" in line


def test_a_sequence_of_an_example_is_the_same_beside_a_longer_one(tmp_path):
    example = (torch.randn(3, 9, 16), torch.randint(1, 20, (3, 6)), torch.tensor([5, 3, 6]))
    assert found(tmp_path, ASKED, example=example) == []
    source = ASKED.replace(".masked_fill(padding, -torch.inf)", "")
    ((name, line),) = found(tmp_path, source, example=example)
    assert name == "padding-leak"
    assert "scores.softmax" in line


def test_a_mask_from_ids_that_nothing_uses_is_found(tmp_path):
    hiding = "scores = scores.masked_fill(encoder_padding_mask[:, None, None], -1e9)"
    unused = FROM_IDS.replace(f"        {hiding}\n", "")
    with written(tmp_path, unused) as target:
        (bug,) = check(target).bugs
    assert bug.name == "padding-leak"
    assert "scores.softmax(-1)" in bug.place.source


SHARED = """
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.query, self.other = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)

    def forward(self, x):
        query, value = self.query(x), self.value(x)
        key = F.normalize(query, dim=-1)
        own = torch.arange(x.shape[1])[:, None] == torch.arange(x.shape[1])
        scores = (query @ key.mT * x.shape[-1] ** -0.5).masked_fill(own, -5e4)
        return scores.softmax(-1) @ value + self.other(x)
"""


@pytest.mark.parametrize(
    ("keys", "bugs"), [("query", []), ("self.other(x)", ["self-hidden"])], ids=["shared", "own"]
)
def test_queries_that_are_their_keys_need_not_see_their_own(tmp_path, keys, bugs):
    source = SHARED.replace("F.normalize(query,", f"F.normalize({keys},")
    with written(tmp_path, source) as attention:
        assert [it.name for it in check(attention).bugs] == bugs
