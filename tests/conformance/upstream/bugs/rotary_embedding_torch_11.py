"""Attention with rotary embeddings whose angles are kept between calls."""

import torch
from torch import nn


def rotate_half(x):
    x = x.reshape(*x.shape[:-1], -1, 2)
    x1, x2 = x.unbind(dim=-1)
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, theta=10000):
        super().__init__()
        freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("freqs", freqs, persistent=False)
        self.cache = {}

    def rotate_queries_or_keys(self, t, offset=0):
        seq_len = t.shape[-2]
        # before
        cache_key = f"freqs:{seq_len}"
        # after
        cache_key = f"freqs:{seq_len}|offset:{offset}"
        # end
        if cache_key not in self.cache:
            positions = torch.arange(seq_len, device=t.device).float() + offset
            freqs = torch.outer(positions, self.freqs.float())
            self.cache[cache_key] = freqs.repeat_interleave(2, dim=-1)
        freqs = self.cache[cache_key]
        return t * freqs.cos().to(t.dtype) + rotate_half(t) * freqs.sin().to(t.dtype)


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.rotary_emb = RotaryEmbedding(dim // heads)
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, kv_cache=None):
        b, n, _ = x.shape
        q, k, v = (
            t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        offset = 0 if kv_cache is None else kv_cache[0].shape[-2]
        q = self.rotary_emb.rotate_queries_or_keys(q, offset=offset)
        k = self.rotary_emb.rotate_queries_or_keys(k, offset=offset)
        if kv_cache is not None:
            k = torch.cat((kv_cache[0], k), dim=-2)
            v = torch.cat((kv_cache[1], v), dim=-2)
        sim = q @ k.transpose(-2, -1) * self.scale
        future = torch.ones(n, k.shape[-2], device=x.device, dtype=torch.bool).triu(offset + 1)
        sim = sim.masked_fill(future, -torch.finfo(sim.dtype).max)
        out = sim.softmax(dim=-1) @ v
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out), (k, v)
