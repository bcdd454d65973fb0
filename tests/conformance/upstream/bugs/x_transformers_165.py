"""Attention that keeps only the largest scores of each query, if it is asked to."""

import torch
from torch import einsum, nn


def exists(val):
    return val is not None


def max_neg_value(tensor):
    return -torch.finfo(tensor.dtype).max


class Attention(nn.Module):
    def __init__(self, dim, dim_head=16, heads=4, causal=False, sparse_topk=None):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.scale = dim_head**-0.5
        self.sparse_topk = sparse_topk
        self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_k = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_v = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_out = nn.Linear(dim_head * heads, dim, bias=False)

    def forward(self, x, mask=None):
        """x: (b n d). mask: true at the tokens to attend to, (b n)."""
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        if exists(mask):
            sim = sim.masked_fill(~mask[:, None, None, :], max_neg_value(sim))
        if self.causal:
            i, j = sim.shape[-2:]
            causal_mask = torch.ones((i, j), dtype=torch.bool, device=x.device).triu(j - i + 1)
            sim = sim.masked_fill(causal_mask, max_neg_value(sim))

        # before
        if exists(self.sparse_topk) and self.sparse_topk < dots.shape[-1]:
            top, _ = dots.topk(self.sparse_topk, dim=-1)
            vk = top[..., -1].unsqueeze(-1).expand_as(dots)
            sim = sim.masked_fill(dots < vk, max_neg_value(sim))
        # after
        if exists(self.sparse_topk) and self.sparse_topk < sim.shape[-1]:
            top, _ = sim.topk(self.sparse_topk, dim=-1)
            vk = top[..., -1].unsqueeze(-1).expand_as(sim)
            sim = sim.masked_fill(sim < vk, max_neg_value(sim))
        # end

        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))
