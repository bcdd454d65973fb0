"""What losses declare, masks that examples give, numbers of key heads, and designs that are no bugs."""

from __future__ import annotations

import functools

import pytest
import torch
from attentions_with_caches import written
from torch import nn

from heedful import check
from heedful.conformance.recording.source import parsed

pytestmark = pytest.mark.slow

HEAD = """import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

"""
# The loss compares the row of each token with the label of the next one.
DECODER = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, vocab_size=37, d_model=24):
        super().__init__()
        self.embed, self.qkv = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, 3 * d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, input_ids, labels=None):
        q, k, v = self.qkv(self.embed(input_ids)).chunk(3, -1)
        logits = self.head(F.scaled_dot_product_attention(q, k, v))
        if labels is None:
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
"""
)
# A mask is made ready for an attention that does not read it.
POOLING = (
    HEAD
    + """
class Cross(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        scores = self.q(x) @ self.k(x).mT / math.sqrt(x.shape[-1])
        return scores.softmax(-1) @ self.v(x)


class Attention(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.cross = Cross(dim)

    def forward(self, x, zero_masks):
        return self.cross(x, zero_masks[:, None].expand(-1, x.shape[1], -1))
"""
)
# Heads of keys are repeated along the axis of the tokens.
GROUPS = (
    HEAD
    + """
@dataclass
class Config:
    hidden_size: int = 24
    num_attention_heads: int = 4
    num_key_value_heads: int = 4


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        size = config.hidden_size // self.heads
        self.q = nn.Linear(config.hidden_size, self.heads * size)
        self.kv = nn.Linear(config.hidden_size, 2 * self.key_heads * size)

    def turned(self, x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos[:, :, None] + torch.cat([-second, first], -1) * sin[:, :, None]

    def forward(self, hidden_states, position_embeddings):
        cos, sin = position_embeddings
        B, T, _ = hidden_states.shape
        q = self.q(hidden_states).view(B, T, self.heads, -1)
        k, v = self.kv(hidden_states).view(B, T, 2, self.key_heads, -1).unbind(2)
        q, k = self.turned(q, cos, sin), self.turned(k, cos, sin)
        k, v = (it.repeat_interleave(self.heads // self.key_heads, dim=1) for it in (k, v))
        q, k, v = (it.transpose(1, 2) for it in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
"""
)
# A switch turns neighbors off smoothly (Zhang et al. 2022).
SWITCHED = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, sw):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) * sw[:, None]
        return weights @ v
"""
)
# The distance of two points is a difference, of which the query's part cancels out.
POINTS = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, coords):
        q, k, v = self.qkv(x).chunk(3, -1)
        distances = (coords[:, :, None] - coords[:, None]).sum(-1)
        return (q @ k.mT / math.sqrt(q.shape[-1]) + distances).softmax(-1) @ v
"""
)
EXAMPLES = {
    "switched": (SWITCHED, lambda: (torch.randn(2, 9, 24), torch.rand(2, 9))),
    "points": (POINTS, lambda: (torch.randn(2, 9, 24), torch.randn(2, 9, 3))),
}


def test_a_loss_of_shifted_labels_says_that_a_decoder_is_causal(tmp_path):
    causal = DECODER.replace("(q, k, v))", "(q, k, v, is_causal=True))")
    for code, expected in ((DECODER, ["future-leak"]), (causal, [])):
        with written(tmp_path, code) as target:
            assert [it.name for it in check(target).bugs] == expected


def test_a_mask_of_an_example_that_is_computed_for_nobody_is_a_bug(tmp_path):
    mask = torch.ones(2, 9)
    mask[1, 6:] = 0
    hiding = POOLING.replace(
        "        return scores",
        "        scores = scores.masked_fill(mask == 0, -1e30)\n        return scores",
    )
    for code, expected in ((POOLING, ["mask-unused"]), (hiding, [])):
        with written(tmp_path, code) as target:
            report = check(target, example=(torch.randn(2, 9, 24), mask))
        assert [it.name for it in report.bugs] == expected
    with written(tmp_path, POOLING) as target:
        (found,) = check(target, example=(torch.randn(2, 9, 24), mask)).bugs
    assert "softmax" in found.place.source


def test_fewer_heads_of_keys_that_fail_are_a_bug_of_a_class_that_takes_their_number(tmp_path):
    with written(tmp_path, GROUPS) as target:
        (found,) = check(target).bugs
    assert (found.name, found.case) == ("crashes", "num_key_value_heads=2")
    with written(tmp_path, GROUPS.replace("dim=1)", "dim=2)")) as target:
        assert not check(target).bugs


@pytest.mark.parametrize("design", EXAMPLES)
def test_a_design_is_silent(design, tmp_path):
    code, example = EXAMPLES[design]
    with written(tmp_path, code) as target:
        assert not check(target, example=example()).bugs


def test_the_source_of_a_decorated_method_is_in_its_own_file():
    decorated = functools.lru_cache(nn.Linear.forward)
    wrapped = functools.wraps(nn.Linear.forward)(lambda *args: decorated(*args))
    assert parsed(wrapped).file == parsed(nn.Linear.forward).file
