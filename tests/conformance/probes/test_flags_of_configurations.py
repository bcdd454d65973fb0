"""Flags of configurations, and a mask that a block takes for tokens without a batch."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

DATACLASS = """
@dataclass
class Settings:
    dim: int = 16
    n_heads: int = 2
    max_seq_len: int = 16
    max_batch_size: int = 4
    use_cache: bool = False


"""
CACHED = """import torch
from dataclasses import dataclass
from torch import nn

SETTINGS
class Attention(nn.Module):
    def __init__(self, config: ANNOTATION):
        super().__init__()
        self.n_heads, self.use_cache = config.n_heads, config.use_cache
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(config.dim, config.dim) for _ in range(4))
        size = config.dim // config.n_heads
        angles = torch.outer(torch.arange(config.max_seq_len), 1e4 ** -(torch.arange(0, size, 2) / size))
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]), persistent=False)
        self.register_buffer("seen", torch.ones(config.max_seq_len, config.max_seq_len).tril().bool())
        if self.use_cache:
            kept = torch.zeros(config.max_batch_size, config.n_heads, config.max_seq_len, size)
            self.register_buffer("k_cache", kept, persistent=False)
            self.register_buffer("v_cache", kept.clone(), persistent=False)

    def heads(self, t):
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def turned(self, t, turns):
        (cos, sin), (a, b) = turns, t.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def forward(self, x, start_pos=None):
        B, T, _ = x.shape
        start = start_pos or 0
        turns = self.turns[:, start : start + T]
        q, k, v = (self.heads(it(x)) for it in (self.wq, self.wk, self.wv))
        q, k = self.turned(q, turns), self.turned(k, turns)
        if self.use_cache:
            assert start_pos is not None
            self.k_cache[:B, :, start : start + T] = k
            self.v_cache[:B, :, start : start + T] = v
            k, v = self.k_cache[:B, :, : start + T], self.v_cache[:B, :, : start + T]
        seen = self.seen[start : start + T, : k.shape[2]]
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
OFFSET = "turns = self.turns[:, start : start + T]", "turns = self.turns[:, :T]"
CONFIGURATIONS = {
    "dataclass": CACHED.replace("SETTINGS", DATACLASS).replace("ANNOTATION", "Settings"),
    "any": CACHED.replace("SETTINGS", "").replace(": ANNOTATION", ""),
}
BLOCK = """import torch
import torch.nn.functional as F
from torch import nn


class Rows(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        rows, dim = x.shape
        q, k, v = (it.view(rows, self.n_heads, -1).transpose(0, 1) for it in self.qkv(x).chunk(3, -1))
        context = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
        return self.out(context.transpose(0, 1).reshape(rows, dim))


class Attention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.attention, self.norm = Rows(dim, n_heads), nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        return x + self.attention.forward(self.norm(x), mask)
"""


def findings(folder, source):
    with written(folder, source) as attention:
        found = check(attention).findings
    return [(it.name, it.level, it.place.source if it.place else "") for it in found]


@pytest.mark.parametrize("source", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_cache_that_a_flag_of_a_configuration_turns_on_is_checked(tmp_path, source):
    right = [it for it in findings(tmp_path, source) if it[1] != "convention"]
    assert right == []
    wrong = findings(tmp_path, source.replace(*OFFSET))
    assert ("rotary-offset", "bug", OFFSET[1]) in wrong


def test_a_mask_that_a_block_of_rows_does_not_hand_on_is_unused(tmp_path):
    assert findings(tmp_path, BLOCK) == []
    wrong = BLOCK.replace("self.norm(x), mask)", "self.norm(x))")
    line = "return x + self.attention.forward(self.norm(x))"
    assert findings(tmp_path, wrong) == [("mask-unused", "bug", line)]
