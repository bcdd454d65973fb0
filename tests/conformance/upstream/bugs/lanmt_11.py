"""A layer with self-attention and cross-attention, each with its own weights."""

import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.linear_Q = nn.Linear(hidden_size, hidden_size)
        self.linear_K = nn.Linear(hidden_size, hidden_size)
        self.linear_V = nn.Linear(hidden_size, hidden_size)
        self.linear_O = nn.Linear(hidden_size, hidden_size)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, -1).transpose(1, 2)

    def forward(self, query, keys, values, mask=None):
        q = self.split(self.linear_Q(query))
        k = self.split(self.linear_K(keys))
        v = self.split(self.linear_V(values))
        logits = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        out = torch.matmul(torch.softmax(logits, dim=-1), v)
        out = out.transpose(1, 2).contiguous().view(query.size(0), query.size(1), -1)
        return self.linear_O(out)


class TransformerCrossEncoderLayer(nn.Module):
    def __init__(self, hidden_size, num_heads, ff_size=48):
        super().__init__()
        self.attention = MultiHeadAttention(hidden_size, num_heads)
        self.cross_attention = MultiHeadAttention(hidden_size, num_heads)
        self.ff_layer = nn.Sequential(
            nn.Linear(hidden_size, ff_size), nn.ReLU(), nn.Linear(ff_size, hidden_size)
        )
        self.layer_norm1 = nn.LayerNorm(hidden_size)
        self.layer_norm2 = nn.LayerNorm(hidden_size)
        self.layer_norm3 = nn.LayerNorm(hidden_size)

    def forward(self, x, x_mask, y, y_mask):
        """x: (batch, len_x, hidden), y: (batch, len_y, hidden), masks: 1 at real tokens."""
        # Attention layer
        h1 = self.layer_norm1(x)
        h1 = self.attention(h1, h1, h1, mask=x_mask)
        h1 = h1 + x
        # Cross-attention
        h2 = self.layer_norm2(h1)
        # before
        h2 = self.attention(h2, y, y, mask=y_mask)
        # after
        h2 = self.cross_attention(h2, y, y, mask=y_mask)
        # end
        h2 = h1 + h2
        # Feed-forward layer
        h3 = self.layer_norm3(h2)
        return self.ff_layer(h3) + h2
