"""One head, with plain parameters as projections and a mask as a buffer."""

import torch
from torch import nn


class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout):
        super().__init__()
        self.W_query = nn.Parameter(torch.randn(d_in, d_out) / d_in**0.5)
        self.W_key = nn.Parameter(torch.randn(d_in, d_out) / d_in**0.5)
        self.W_value = nn.Parameter(torch.randn(d_in, d_out) / d_in**0.5)
        self.dropout = nn.Dropout(dropout)
        ahead = torch.triu(torch.ones(context_length, context_length), diagonal=1)
        self.register_buffer("mask", ahead)

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        queries = x @ self.W_query
        keys = x @ self.W_key
        values = x @ self.W_value
        attn_scores = queries @ keys.transpose(1, 2)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)
        attn_weights = self.dropout(attn_weights)
        context_vec = attn_weights @ values
        return context_vec
