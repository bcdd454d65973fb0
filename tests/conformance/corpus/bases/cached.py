"""Rotary positions (interleaved pairs), grouped heads, and a cache of fixed size in the module."""

import torch
import torch.nn.functional as F
from torch import nn


def rotate(x, start_pos):
    pairs = torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1]
    positions = torch.arange(start_pos, start_pos + x.shape[1], dtype=torch.float64)
    angles = torch.outer(positions, 10000.0**-pairs)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads, max_batch_size=4, max_seq_len=32):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.n_rep = n_heads // n_kv_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        shape = (max_batch_size, max_seq_len, n_kv_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def forward(self, x, start_pos=0):
        bsz, seqlen, _ = x.shape
        xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = self.wk(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xv = self.wv(x).view(bsz, seqlen, self.n_kv_heads, self.head_dim)
        xq = rotate(xq, start_pos)
        xk = rotate(xk, start_pos)
        total = start_pos + seqlen
        with torch.no_grad():
            self.cache_k[:bsz, start_pos:total] = xk
            self.cache_v[:bsz, start_pos:total] = xv
        keys = torch.cat([self.cache_k[:bsz, :start_pos], xk], dim=1)
        values = torch.cat([self.cache_v[:bsz, :start_pos], xv], dim=1)
        keys = keys.repeat_interleave(self.n_rep, dim=2).transpose(1, 2)
        values = values.repeat_interleave(self.n_rep, dim=2).transpose(1, 2)
        scores = torch.matmul(xq.transpose(1, 2), keys.transpose(2, 3)) / self.head_dim**0.5
        mask = torch.ones(seqlen, total, dtype=torch.bool).triu(start_pos + 1)
        scores = scores.masked_fill(mask, float("-inf"))
        scores = F.softmax(scores, dim=-1)
        output = torch.matmul(scores, values)
        output = output.transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(output)
