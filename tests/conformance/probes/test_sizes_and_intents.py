"""Sizes that must not be equal, a causal mask that nothing uses, frames of a volume, and norms that are passed over."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

# Multi-head latent attention: some features of a head turn, and their keys are shared by all heads.
LATENT = """import torch
from dataclasses import dataclass
from torch import nn


@dataclass
class Settings:
    hidden_size: int = 512
    num_heads: int = 8
    qk_nope_head_dim: int = 64
    qk_rope_head_dim: int = 32


def turned(x):
    places = torch.arange(x.shape[-2], dtype=torch.float64)[:, None]
    angles = places * 1e4 ** -(torch.arange(0, SIZE, 2) / SIZE)
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.steady, self.turning = config.num_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
        width = config.num_heads * config.qk_nope_head_dim
        self.q = nn.Linear(config.hidden_size, config.num_heads * (self.steady + self.turning))
        self.k, self.v = nn.Linear(config.hidden_size, width), nn.Linear(config.hidden_size, width)
        self.k_turned = nn.Linear(config.hidden_size, KEYS)
        self.o = nn.Linear(width, config.hidden_size)

    def forward(self, hidden_states):
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q = split(self.q(hidden_states))
        q = torch.cat([q[..., : self.steady], turned(q[..., self.steady :])], -1)
        shared = turned(self.k_turned(hidden_states)[:, None]).expand(-1, self.heads, -1, -1)
        k = torch.cat([split(self.k(hidden_states)), shared], -1)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.o((weights @ split(self.v(hidden_states))).transpose(1, 2).flatten(2))
""".replace("SIZE", "x.shape[-1]")
DECODER = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, embed_tokens: nn.Embedding):
        super().__init__()
        self.embed_tokens, width = embed_tokens, embed_tokens.embedding_dim
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, prev_output_tokens):
        q, k, v = self.qkv(self.embed_tokens(prev_output_tokens)).chunk(3, -1)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.buffered_future_mask(q)
        return scores.softmax(-1) @ v

    def buffered_future_mask(self, x):
        T = x.shape[1]
        return torch.full((T, T), -torch.inf, dtype=x.dtype).triu(1)
"""
VOLUMES = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    '''Mixes the neighbors of a volume.'''

    def __init__(self, dim, causal=False):
        super().__init__()
        self.causal = causal
        self.dsconv = nn.Conv3d(dim, dim, 3, groups=dim)

    def forward(self, x):
        '''x: (B, T, H, W, C)'''
        x = x.permute(0, 4, 1, 2, 3)
        x = F.pad(x, (1, 1, 1, 1, *((2, 0) if self.causal else (1, 1))))
        return self.dsconv(x).permute(0, 2, 3, 4, 1)
"""
PRE_NORM = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.layer = nn.Sequential(nn.LayerNorm(dim), attention)

    def forward(self, x):
        norm, attention = self.layer
        y = norm(x)
        return x + attention(y, y, y)[0]
"""


def bugs(tmp_path, source):
    with written(tmp_path, source) as attention:
        return [(it.name, it.place.source if it.place else "") for it in check(attention).bugs]


@pytest.mark.parametrize(("keys", "count"), [("self.turning", 0), ("self.steady", 1)])
def test_features_that_turn_need_not_be_as_many_as_the_others(tmp_path, keys, count):
    found = bugs(tmp_path, LATENT.replace("KEYS", keys))
    assert [name for name, _ in found] == ["crashes"] * count


def test_a_decoder_has_a_use_for_its_mask_of_later_tokens(tmp_path):
    assert bugs(tmp_path, DECODER) == []
    found = bugs(tmp_path, DECODER.replace(" + self.buffered_future_mask(q)", ""))
    assert [name for name, _ in found] == ["future-leak"]


def test_the_mask_of_a_method_may_be_for_those_who_call(tmp_path):
    source = DECODER.replace("self, prev_output_tokens", "self, prev_output_tokens, mask=None")
    given = "if mask is not None:\n            scores = scores + mask\n        return"
    source = source.replace(" + self.buffered_future_mask(q)\n        return", f"\n        {given}")
    assert bugs(tmp_path, source) == []


def test_the_frames_of_a_volume_are_causal_and_not_its_voxels(tmp_path):
    assert bugs(tmp_path, VOLUMES) == []
    found = bugs(tmp_path, VOLUMES.replace("(2, 0)", "(1, 1)"))
    assert [name for name, _ in found] == ["future-leak"]


def test_a_norm_of_a_sequence_of_layers_that_is_passed_over_is_named(tmp_path):
    assert bugs(tmp_path, PRE_NORM) == []
    source = PRE_NORM.replace("y = norm(x)", "y = x").replace("attention(y", "self.layer[1](y")
    (found,) = bugs(tmp_path, source.replace("norm, attention = self.layer\n        ", ""))
    assert found == ("projection-unused", "return x + self.layer[1](y, y, y)[0]")
