"""Einsum equations, the scale applied to the queries, and the mask built where it is used."""

import torch
from torch import einsum, nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=6, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * heads * dim_head, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(heads * dim_head, dim)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.to_q(x)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1) for t in (q, k, v))
        q = q * self.scale
        sim = einsum("bihd,bjhd->bhij", q, k)
        causal_mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        attn = self.dropout(attn)
        out = einsum("bhij,bjhd->bihd", attn, v)
        out = out.reshape(b, n, -1)
        return self.to_out(out)
