"""The attention of a small BERT that is measured in half precision."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Compute 'Scaled Dot Product Attention'"""

    def forward(self, query, key, value, dropout, mask=None):
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        if mask is not None:
            # before
            scores = scores.masked_fill(mask == 0, -1e9)
            # after
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
            # end
        p_attn = dropout(F.softmax(scores, dim=-1))
        return torch.matmul(p_attn, value)


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.0):
        super().__init__()
        self.d_k = d_model // h
        self.h = h
        self.linear_layers = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(3)])
        self.output_linear = nn.Linear(d_model, d_model)
        self.attention = Attention()
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        """mask: 0 at keys that are hidden, of shape (batch, 1, queries, keys)"""
        batch_size = query.size(0)
        query, key, value = [
            layer(x).view(batch_size, -1, self.h, self.d_k).transpose(1, 2)
            for layer, x in zip(self.linear_layers, (query, key, value))
        ]
        x = self.attention(query, key, value, self.dropout, mask)
        x = x.transpose(1, 2).contiguous().view(batch_size, -1, self.h * self.d_k)
        return self.output_linear(x)
