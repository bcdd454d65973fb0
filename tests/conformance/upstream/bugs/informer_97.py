"""Attention of a forecaster over time series, with a causal mask."""

from math import sqrt

import torch
from torch import nn


class ProbAttention(nn.Module):
    def __init__(self, scale=None, attention_dropout=0.1):
        super().__init__()
        self.scale = scale
        self.dropout = nn.Dropout(attention_dropout)

    def forward(self, queries, keys, values):
        B, L, H, E = queries.shape
        scale = self.scale or 1.0 / sqrt(E)
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        attn_mask = torch.triu(
            torch.ones(L, L, dtype=torch.bool, device=queries.device), diagonal=1
        )
        scores = scores.masked_fill(attn_mask, float("-inf"))
        # before
        attn = torch.softmax(scale * scores, dim=-1)
        # after
        attn = self.dropout(torch.softmax(scale * scores, dim=-1))
        # end
        return torch.einsum("bhls,bshd->blhd", attn, values).contiguous()


class AttentionLayer(nn.Module):
    def __init__(self, d_model, n_heads, attention_dropout=0.1):
        super().__init__()
        d_keys = d_model // n_heads
        self.inner_attention = ProbAttention(attention_dropout=attention_dropout)
        self.query_projection = nn.Linear(d_model, d_keys * n_heads)
        self.key_projection = nn.Linear(d_model, d_keys * n_heads)
        self.value_projection = nn.Linear(d_model, d_keys * n_heads)
        self.out_projection = nn.Linear(d_keys * n_heads, d_model)
        self.n_heads = n_heads

    def forward(self, x):
        B, L, _ = x.shape
        H = self.n_heads
        queries = self.query_projection(x).view(B, L, H, -1)
        keys = self.key_projection(x).view(B, L, H, -1)
        values = self.value_projection(x).view(B, L, H, -1)
        out = self.inner_attention(queries, keys, values).view(B, L, -1)
        return self.out_projection(out)
