"""Self-attention over the fields of a click-through-rate model."""

import torch
from torch import nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout_rate=0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout_rate) if dropout_rate > 0 else None

    def forward(self, Q, K, V, scale=None):
        scores = torch.matmul(Q, K.transpose(-1, -2))
        if scale:
            scores = scores / scale
        attention = scores.softmax(dim=-1)
        if self.dropout is not None:
            attention = self.dropout(attention)
        output = torch.matmul(attention, V)
        return output, attention


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, input_dim, attention_dim=16, num_heads=2, dropout_rate=0.0, use_scale=True):
        super().__init__()
        self.attention_dim = attention_dim // num_heads
        self.num_heads = num_heads
        self.scale = self.attention_dim**0.5 if use_scale else None
        self.W_q = nn.Linear(input_dim, attention_dim, bias=False)
        self.W_k = nn.Linear(input_dim, attention_dim, bias=False)
        self.W_v = nn.Linear(input_dim, attention_dim, bias=False)
        self.dot_attention = ScaledDotProductAttention(dropout_rate)

    def forward(self, X):
        query = self.W_q(X)
        key = self.W_k(X)
        value = self.W_v(X)
        batch_size = query.size(0)
        # before
        query = query.view(batch_size * self.num_heads, -1, self.attention_dim)
        key = key.view(batch_size * self.num_heads, -1, self.attention_dim)
        value = value.view(batch_size * self.num_heads, -1, self.attention_dim)
        output, _ = self.dot_attention(query, key, value, scale=self.scale)
        output = output.view(batch_size, -1, self.num_heads * self.attention_dim)
        # after
        query = query.view(batch_size, -1, self.num_heads, self.attention_dim).transpose(1, 2)
        key = key.view(batch_size, -1, self.num_heads, self.attention_dim).transpose(1, 2)
        value = value.view(batch_size, -1, self.num_heads, self.attention_dim).transpose(1, 2)
        output, _ = self.dot_attention(query, key, value, scale=self.scale)
        output = output.transpose(1, 2).reshape(batch_size, -1, self.num_heads * self.attention_dim)
        # end
        return output
