"""Multi-head attention that folds the heads into the batch and unfolds them again."""

import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, emb_dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = emb_dim // num_heads
        self.query_proj = nn.Linear(emb_dim, emb_dim)
        self.key_proj = nn.Linear(emb_dim, emb_dim)
        self.value_proj = nn.Linear(emb_dim, emb_dim)
        self.out_proj = nn.Linear(emb_dim, emb_dim)

    def reshape_from_feed(self, batch_size, _tensor):
        _tensor = _tensor.view(batch_size, -1, self.num_heads, self.head_dim)
        _tensor = _tensor.permute(0, 2, 1, 3).contiguous()
        return _tensor.view(batch_size * self.num_heads, -1, self.head_dim)

    def reshape_to_concat(self, batch_size, _tensor):
        # before shape: (batch size, number of heads, input length, head dimension)
        # after shape: (batch size, input length, number of heads, head dimension)
        _tensor = _tensor.permute(0, 2, 1, 3)
        return _tensor.contiguous().view(batch_size, -1, self.num_heads * self.head_dim)

    def forward(self, query, key, value):
        batch_size = query.size(0)
        query = self.reshape_from_feed(batch_size, self.query_proj(query))
        key = self.reshape_from_feed(batch_size, self.key_proj(key))
        value = self.reshape_from_feed(batch_size, self.value_proj(value))
        attn_score = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(self.head_dim)
        attn_score = torch.softmax(attn_score, dim=-1)
        output = torch.bmm(attn_score, value)
        # before
        output = output.view(self.num_heads, batch_size, -1, self.head_dim)
        # after
        output = output.view(batch_size, self.num_heads, -1, self.head_dim)
        # end
        output = self.reshape_to_concat(batch_size, output)
        return self.out_proj(output)
