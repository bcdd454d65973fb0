"""Cross-attention of latents to a context, with helpers for heads."""

import torch
from torch import einsum, nn


def exists(val):
    return val is not None


class CrossAttention(nn.Module):
    def __init__(self, *, query_dim, context_dim=None, heads=4, dim_head=8, dropout=0.1):
        super().__init__()
        context_dim = context_dim if exists(context_dim) else query_dim
        inner_dim = heads * dim_head
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(context_dim, inner_dim * 2, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def split_heads(self, t):
        b, n, _ = t.shape
        return t.reshape(b, n, self.heads, -1).transpose(1, 2)

    def forward(self, x, context=None, mask=None):
        """
        mask: (batch, length of the context), True at tokens to attend to
        """
        context = context if exists(context) else x
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = map(self.split_heads, (q, k, v))
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        if exists(mask):
            sim = sim.masked_fill(~mask[:, None, None, :], -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        attn = self.dropout(attn)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        out = out.transpose(1, 2).flatten(2)
        return self.to_out(out)
