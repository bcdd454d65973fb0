"""Causal attention with heads of the usual size."""

import torch
from torch import nn


class MemoryCompressedAttention(nn.Module):
    def __init__(self, dim, heads=8, causal=True, dropout=0.0):
        super().__init__()
        assert (dim % heads) == 0, "dimension must be divisible by number of heads"
        self.heads = heads
        self.causal = causal
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, t, d = x.shape
        h = self.heads
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], h, -1).transpose(1, 2) for t in (q, k, v))
        dots = torch.einsum("bhid,bhjd->bhij", q, k) * (d // h) ** -0.5
        # before
        mask_value = -float("-inf")
        # after
        mask_value = float("-inf")
        # end
        if self.causal:
            mask = torch.ones(t, t, device=x.device).triu_(1).bool()
            dots.masked_fill_(mask[None, None, :, :], mask_value)
        attn = dots.softmax(dim=-1)
        attn = self.dropout(attn)
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        out = out.transpose(1, 2).reshape(b, t, d)
        return self.to_out(out)
