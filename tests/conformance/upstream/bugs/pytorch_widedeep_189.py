"""The attention of transformers for tables, whose tokens are columns."""

import math

import torch.nn.functional as F
from torch import einsum, nn


class MultiHeadedAttention(nn.Module):
    def __init__(self, input_dim, n_heads, use_bias=False, dropout=0.1, query_dim=None):
        super().__init__()
        query_dim = query_dim or input_dim
        self.head_dim = query_dim // n_heads
        self.n_heads = n_heads
        self.q_proj = nn.Linear(query_dim, input_dim, bias=use_bias)
        self.kv_proj = nn.Linear(input_dim, input_dim * 2, bias=use_bias)
        self.out_proj = nn.Linear(input_dim, query_dim, bias=use_bias)
        self.dropout = dropout

    def _split(self, x):
        b, s, _ = x.shape
        return x.view(b, s, self.n_heads, -1).transpose(1, 2)

    def _standard_attention(self, q, k, v):
        """b: batch size, s: source length, l: target length, d: head dimension, h: number of heads"""
        scores = einsum("b h s d, b h l d -> b h s l", q, k) / math.sqrt(self.head_dim)
        attn_weights = scores.softmax(dim=-1)
        # before
        attn_weights = nn.Dropout(self.dropout)(attn_weights)
        # after
        attn_weights = F.dropout(attn_weights, p=self.dropout, training=self.training)
        # end
        return einsum("b h s l, b h l d -> b h s d", attn_weights, v)

    def forward(self, X_Q, X_KV=None):
        X_KV = X_KV if X_KV is not None else X_Q
        q = self._split(self.q_proj(X_Q))
        k, v = (self._split(x) for x in self.kv_proj(X_KV).chunk(2, dim=-1))
        output = self._standard_attention(q, k, v)
        b, _, s, _ = output.shape
        return self.out_proj(output.transpose(1, 2).reshape(b, s, -1))
