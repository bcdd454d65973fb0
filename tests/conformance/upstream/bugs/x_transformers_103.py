"""Causal attention with relative positions, and with a memory of the tokens of the segment before."""

import math

import torch
from torch import nn


class RelativePositionBias(nn.Module):
    def __init__(self, scale, num_buckets=32, max_distance=128, heads=8):
        super().__init__()
        self.scale = scale
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.relative_attention_bias = nn.Embedding(num_buckets, heads)

    @staticmethod
    def _relative_position_bucket(relative_position, num_buckets=32, max_distance=128):
        n = (-relative_position).clamp(min=0)
        max_exact = num_buckets // 2
        far = torch.log(n.clamp(min=1) / max_exact) / math.log(max_distance / max_exact)
        far = (max_exact + (far * (num_buckets - max_exact)).long()).clamp(max=num_buckets - 1)
        return torch.where(n < max_exact, n, far)

    def forward(self, qk_dots):
        i, j, device = *qk_dots.shape[-2:], qk_dots.device
        # before
        q_pos = torch.arange(i, dtype=torch.long, device=device)
        # after
        q_pos = torch.arange(j - i, j, dtype=torch.long, device=device)
        # end
        k_pos = torch.arange(j, dtype=torch.long, device=device)
        rel_pos = k_pos[None, :] - q_pos[:, None]
        bucket = self._relative_position_bucket(rel_pos, self.num_buckets, self.max_distance)
        bias = self.relative_attention_bias(bucket).permute(2, 0, 1)
        return qk_dots + bias * self.scale


class Attention(nn.Module):
    def __init__(self, dim, dim_head=64, heads=8):
        super().__init__()
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_k = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_v = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_out = nn.Linear(dim_head * heads, dim)
        self.rel_pos = RelativePositionBias(scale=dim_head**0.5, heads=heads)

    def forward(self, x, mem=None):
        """mem: the tokens before x, of shape (batch, memory length, dim)"""
        b, n, _ = x.shape
        kv_input = torch.cat((mem, x), dim=1) if mem is not None else x
        q, k, v = self.to_q(x), self.to_k(kv_input), self.to_v(kv_input)
        q, k, v = (t.reshape(b, t.size(1), self.heads, -1).transpose(1, 2) for t in (q, k, v))

        dots = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        dots = self.rel_pos(dots)
        i, j = dots.shape[-2:]
        causal_mask = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
        dots = dots.masked_fill(causal_mask, -torch.finfo(dots.dtype).max)
        out = torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))
