"""A decoder's attention by the fused kernel, with a cache of keys and values."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, dim_head=16, heads=4, causal=True, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.dropout = dropout
        self.to_q = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_k = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_v = nn.Linear(dim, dim_head * heads, bias=False)
        self.to_out = nn.Linear(dim_head * heads, dim, bias=False)

    def forward(self, x, cache=None):
        b, n, h = x.shape[0], x.shape[1], self.heads
        q, k, v = (
            project(x).reshape(b, n, h, -1).transpose(1, 2)
            for project in (self.to_q, self.to_k, self.to_v)
        )
        if cache is not None:
            ck, cv = cache
            k = torch.cat((ck, k), dim=-2)
            v = torch.cat((cv, v), dim=-2)
        dropout = self.dropout if self.training else 0.0
        # before
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        # after
        mask = None
        if self.causal:
            i, j = q.shape[-2], k.shape[-2]
            mask = torch.ones((i, j), device=x.device, dtype=torch.bool).tril(j - i)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        # end
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out), (k, v)
