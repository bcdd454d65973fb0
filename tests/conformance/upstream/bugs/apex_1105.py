"""The attention of an encoder that is trained in half precision."""

import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, head_mask):
        """head_mask: (batch, length), 0 at padding."""
        b, n, _ = x.shape
        q = self.query(x).view(b, n, self.num_heads, self.head_size).transpose(1, 2)
        k = self.key(x).view(b, n, self.num_heads, self.head_size).transpose(1, 2)
        v = self.value(x).view(b, n, self.num_heads, self.head_size).transpose(1, 2)
        attn_scores_head = q @ k.transpose(-1, -2) / math.sqrt(self.head_size)
        hidden = (head_mask == 0)[:, None, None, :]
        # before
        attn_scores_head = attn_scores_head.masked_fill(hidden, -1e10)
        # after
        attn_scores_head = attn_scores_head.masked_fill(hidden, float("-inf"))
        # end
        attn = self.dropout(torch.softmax(attn_scores_head, dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(b, n, -1)
        return self.output(out)
