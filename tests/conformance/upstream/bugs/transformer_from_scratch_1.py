"""Multi-head attention with one projection for the features of every head."""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, embed_dim=512, heads=8):
        super().__init__()
        self.embed_dim = embed_dim
        self.heads = heads
        self.head = embed_dim // heads

        self.query = nn.Linear(self.head, self.head, bias=False)
        self.value = nn.Linear(self.head, self.head, bias=False)
        self.key = nn.Linear(self.head, self.head, bias=False)
        self.fc_out = nn.Linear(self.head * self.heads, embed_dim)

    def forward(self, key, query, value, mask=None):
        batch_size = key.size(0)
        k_len, q_len, v_len = key.size(1), query.size(1), value.size(1)

        # (32, 10, 512) to (32, 10, 8, 64)
        key = key.reshape(batch_size, k_len, self.heads, self.head)
        query = query.reshape(batch_size, q_len, self.heads, self.head)
        value = value.reshape(batch_size, v_len, self.heads, self.head)

        key = self.key(key)
        # before
        query = self.key(query)
        value = self.key(value)
        # after
        query = self.query(query)
        value = self.value(value)
        # end

        # (32, 8, 10, 10)
        product = torch.einsum("bqhd,bkhd->bhqk", query, key)
        if mask is not None:
            product = product.masked_fill(mask == 0, float("-inf"))
        scores = torch.softmax(product / self.head**0.5, dim=-1)

        output = torch.einsum("bhqk,bkhd->bqhd", scores, value)
        output = output.reshape(batch_size, q_len, self.heads * self.head)
        return self.fc_out(output)
