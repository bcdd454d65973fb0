"""Queries from one sequence, keys and values from another one; in its padding mask, True marks real tokens."""

import torch
from torch import nn


class CrossAttention(nn.Module):
    def __init__(self, dim, context_dim, heads=4, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(context_dim, dim, bias=False)
        self.to_v = nn.Linear(context_dim, dim, bias=False)
        self.attn_drop = nn.Dropout(dropout)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context, context_mask=None):
        b, n, d = x.shape
        m = context.shape[1]
        q = self.to_q(x).reshape(b, n, self.heads, d // self.heads).permute(0, 2, 1, 3)
        k = self.to_k(context).reshape(b, m, self.heads, d // self.heads).permute(0, 2, 1, 3)
        v = self.to_v(context).reshape(b, m, self.heads, d // self.heads).permute(0, 2, 1, 3)
        dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        if context_mask is not None:
            dots = dots.masked_fill(~context_mask[:, None, None, :], -torch.finfo(dots.dtype).max)
        attn = self.attn_drop(dots.softmax(dim=-1))
        out = torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        out = out.permute(0, 2, 1, 3).reshape(b, n, d)
        return self.to_out(out)
