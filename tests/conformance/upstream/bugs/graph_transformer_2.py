"""The attention of a graph transformer, with features of the edges added to keys and values."""

import torch
from torch import einsum, nn


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class Attention(nn.Module):
    def __init__(self, dim, dim_head=64, heads=8, edge_dim=None):
        super().__init__()
        edge_dim = default(edge_dim, dim)
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q = nn.Linear(dim, inner_dim)
        self.to_kv = nn.Linear(dim, inner_dim * 2)
        self.edges_to_kv = nn.Linear(edge_dim, inner_dim)
        self.to_out = nn.Linear(inner_dim, dim)

    def fold_heads(self, t):
        """b ... (h d) -> (b h) ... d"""
        t = t.unflatten(-1, (self.heads, -1)).movedim(-2, 1)
        return t.flatten(0, 1)

    def forward(self, nodes, edges, mask=None):
        """nodes: (b n d). edges: (b n n e). mask: true at real nodes, (b n)."""
        h = self.heads
        q = self.to_q(nodes)
        k, v = self.to_kv(nodes).chunk(2, dim=-1)
        e_kv = self.edges_to_kv(edges)
        q, k, v, e_kv = (self.fold_heads(t) for t in (q, k, v, e_kv))

        k, v = (t.unsqueeze(1) + e_kv for t in (k, v))
        sim = einsum("b i d, b i j d -> b i j", q, k) * self.scale

        if exists(mask):
            # before
            mask = mask.unsqueeze(2) & mask.unsqueeze(1)
            # after
            mask = (mask.unsqueeze(2) & mask.unsqueeze(1)).repeat_interleave(h, dim=0)
            # end
            max_neg_value = -torch.finfo(sim.dtype).max
            sim = sim.masked_fill(~mask, max_neg_value)

        attn = sim.softmax(dim=-1)
        out = einsum("b i j, b i j d -> b i d", attn, v)
        out = out.unflatten(0, (-1, h)).transpose(1, 2).flatten(2)
        return self.to_out(out)
