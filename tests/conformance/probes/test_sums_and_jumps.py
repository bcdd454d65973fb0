"""Sums of projections, choices that jump, shapes without brackets, and arguments with axes for pairs of tokens."""

from __future__ import annotations

import pytest
from attentions_with_caches import written
from gapped_attention import bugs_in, self_attention

from heedful import check

pytestmark = pytest.mark.slow

HEAD = """import torch
import torch.nn.functional as F
from torch import nn

"""
# Hu et al. 2021: the update of a projection has a scale of its own.
LOW_RANK = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24, num_heads=4, rank=4, alpha=8.0):
        super().__init__()
        self.num_heads, self.scaling = num_heads, alpha / rank
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.down, self.up = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        query = self.q(x) + self.scaling * self.up(self.down(x))
        q, k, v = (it.view(B, T, self.num_heads, -1).transpose(1, 2) for it in (query, self.k(x), self.v(x)))
        weights = (q @ k.mT / SCALE).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)
"""
)
# WavLM's: the layers take tokens first, and biases by buckets of distances.
TURNED = (
    HEAD
    + """
class Layer(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.bias = nn.Embedding(8, num_heads)

    def forward(self, x):
        '''x: T x B x C'''
        T, B, C = x.size()
        q, k, v = (it(x).view(T, B * self.num_heads, -1).transpose(0, 1) for it in (self.q, self.k, self.v))
        distances = torch.arange(T)[None] - torch.arange(T)[:, None]
        buckets = (distances > 0).long() * 4 + distances.abs().clamp(max=3)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.bias(buckets).permute(2, 0, 1).repeat(B, 1, 1)
        return (scores.softmax(-1) @ v).transpose(0, 1).reshape(T, B, C)


class Attention(nn.Module):
    def __init__(self, dim=24, num_heads=4):
        super().__init__()
        self.layer = Layer(dim, num_heads)

    def forward(self, x):
        '''x: B x T x C'''
        return self.layer(x.transpose(0, 1)).transpose(0, 1)
"""
)
# Transformer-XL's: the comment gives ids tokens first.
IDS = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, vocab_size=20, dim=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, data):
        # data: qlen x bsz
        x = self.embedding(data).TURN
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.v(x)).TURN
"""
)
# The remaining weight goes to the last real token: padding is on the right.
LAST = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, key_padding_mask=None):
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        last = torch.full((len(x),), x.shape[1] - 1)
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None], float("-inf"))
            last = (~key_padding_mask).sum(-1) - 1
        weights = scores.softmax(-1) * 0.5
        rest = (1 - weights.sum(-1, keepdim=True)).clamp(min=0)
        weights = weights.scatter_add(2, last.view(-1, 1, 1).expand(-1, x.shape[1], 1), rest)
        return weights @ self.v(x)
"""
)
CHOSEN_CHUNK = self_attention(
    """T = x.shape[1]
        size = int(torch.randint(1, T, (1,)))
        places = torch.arange(T)
        visible = places[None] < (places[:, None] // size + 1) * size
        visible = (x != 0).any(-1)[:, None, None] & visible
        scores = scores.masked_fill(~visible, float("-inf"))"""
)
ARGUMENTS = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, *memories):
        memories = list(memories) if memories else [x]
        tokens = torch.cat(memories, 1)
        return (self.q(x) @ self.k(tokens).mT / x.shape[-1] ** 0.5).softmax(-1) @ self.v(tokens)
"""
)
# Flax's flag: the caller turns dropout on.
DETERMINISTIC = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24, dropout=0.1):
        super().__init__()
        self.q, self.k, self.v, self.dropout = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim), dropout

    def forward(self, x, deterministic=True):
        weights = (self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5).softmax(-1)
        if not deterministic and self.dropout > 0:
            weights = F.dropout(weights, self.dropout)
        return weights @ self.v(x)
"""
)
# Wu et al. 2021: the values of the lags that correlate most, here in float32 whatever the tokens are.
BY_LAGS = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x).float(), self.k(x).float(), self.v(x).float()
        lags = torch.fft.irfft(torch.fft.rfft(q, dim=1) * torch.fft.rfft(k, dim=1).conj(), n=x.shape[1], dim=1)
        weights, chosen = lags.topk(x.shape[1], dim=1)
        return (weights.softmax(1) * v.gather(1, chosen.flip(1))).cumsum(1).to(x.dtype)
"""
)
PAIRS = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, src_size, tgt_size, hidden_size):
        super().__init__()
        self.hidden = nn.Linear(src_size + tgt_size, hidden_size)
        self.score = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, src, tgt, mask):
        scores = self.score(torch.tanh(self.hidden(torch.cat([src, tgt], dim=-1)))).squeeze(3)
        scores = HIDDEN
        weights = torch.softmax(scores, dim=2)
        return torch.sum(weights.unsqueeze(3).expand_as(src) * src, dim=2), weights
"""
)
SAMPLES = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, embed_dim=24, heads=4):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, headsBATCH_FIRST)

    def forward(self, x):
        '''输入x: [batch, action_dim]'''
        x = x.unsqueeze(1)
        return self.attention(x, x, x)[0].squeeze(1)
"""
)


@pytest.mark.parametrize(("scale", "names"), [("q.shape[-1] ** 0.5", []), ("2", ["scale-wrong"])])
def test_the_scale_of_a_low_rank_update_is_its_own(tmp_path, scale, names):
    assert [*bugs_in(tmp_path, LOW_RANK.replace("SCALE", scale))] == names


def test_a_scale_before_a_gate_counts(tmp_path):
    gated = "self.q(x) * (x.shape[-1] // self.num_heads) ** -0.5 * self.up(self.down(x)).sigmoid()"
    source = LOW_RANK.replace("self.q(x) + self.scaling * self.up(self.down(x))", gated)
    assert bugs_in(tmp_path, source.replace("SCALE", "1")) == {}


@pytest.mark.parametrize(
    "source",
    [TURNED, ARGUMENTS, DETERMINISTIC, BY_LAGS],
    ids=["turned", "arguments", "deterministic", "lags"],
)
def test_sound_designs_are_not_blamed(tmp_path, source):
    assert bugs_in(tmp_path, source) == {}


@pytest.mark.parametrize(("before", "is_sound"), [(1, True), (0, False)])
def test_a_place_that_is_counted_in_a_mask_tells_of_padding_on_the_right(
    tmp_path, before, is_sound
):
    place = f"((~key_padding_mask).sum(-1) - {before}).clamp(max=x.shape[1] - 1)"
    source = LAST.replace("(~key_padding_mask).sum(-1) - 1", place)
    with written(tmp_path, source) as target:
        found = {it.name for it in check(target).findings}
    assert found.isdisjoint({"padding-leak", "left-padding-positions"}) is is_sound


def test_a_wrong_turn_of_axes_is_named_by_the_shapes_without_brackets(tmp_path):
    turned = "self.layer(x.transpose(0, 1)).transpose(0, 1)"
    assert [*bugs_in(tmp_path, TURNED.replace(turned, "self.layer(x)"))] == ["batch-mixed"]


@pytest.mark.parametrize(
    ("turn", "names"), [("transpose(0, 1)", []), ("contiguous()", ["batch-mixed"])]
)
def test_ids_are_given_tokens_first_if_a_comment_says_so(tmp_path, turn, names):
    assert [*bugs_in(tmp_path, IDS.replace("TURN", turn))] == names


def test_indices_that_are_drawn_in_eval_mode_are_no_dropout(tmp_path):
    with written(tmp_path, CHOSEN_CHUNK) as target:
        found = {it.name: it.level for it in check(target).findings}
    assert found["dropout-in-eval"] == "suspicious"


def test_a_choice_that_jumps_is_told(tmp_path):
    with written(tmp_path, BY_LAGS) as target:
        facts = {it.name: it.value for it in check(target).facts}
    assert facts["gradients"].startswith("not compared")


@pytest.mark.parametrize(
    ("hidden", "is_named"),
    [("mask * scores", True), ("scores.masked_fill(mask == 0, float('-inf'))", False)],
)
def test_an_axis_for_each_pair_of_tokens_is_tried(tmp_path, hidden, is_named):
    with written(tmp_path, PAIRS.replace("HIDDEN", hidden)) as target:
        found = {it.name for it in check(target).findings}
    assert ("mask-fill-too-small" in found) is is_named


def test_weights_that_are_multiplied_by_the_mask_afterwards_are_hidden(tmp_path):
    """AllenNLP's masked softmax: the weights left are divided by their sum."""
    source = PAIRS.replace(
        "scores = HIDDEN", "mask = mask.float()\n        scores = mask * scores"
    ).replace(
        "weights = torch.softmax(scores, dim=2)",
        "weights = torch.softmax(scores, dim=2) * mask\n        weights = weights / weights.sum(2, keepdim=True)",
    )
    with written(tmp_path, source) as target:
        assert "mask-fill-too-small" not in {it.name for it in check(target).findings}


@pytest.mark.parametrize(
    ("batch_first", "names"), [("", ["batch-mixed"]), (", batch_first=True", [])]
)
def test_an_argument_is_documented_behind_words_of_another_script(tmp_path, batch_first, names):
    assert [*bugs_in(tmp_path, SAMPLES.replace("BATCH_FIRST", batch_first))] == names


def test_no_fix_takes_away_the_docstring_that_says_what_is_right(tmp_path):
    with written(tmp_path, SAMPLES.replace("BATCH_FIRST", "")) as target:
        report = check(target, fix=True)
    assert [it.name for it in report.bugs] == ["batch-mixed"]
    assert all("action_dim" in it.after for it in report.fixes or ())
