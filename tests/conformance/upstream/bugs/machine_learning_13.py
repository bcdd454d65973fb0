"""The multi-head attention of a tutorial on the transformer."""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, hid_dim: int, n_heads: int, dropout: float = 0.1):
        super().__init__()
        assert hid_dim % n_heads == 0
        self.hid_dim = hid_dim
        self.n_heads = n_heads
        self.query = nn.Linear(hid_dim, hid_dim)
        self.key = nn.Linear(hid_dim, hid_dim)
        self.value = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hid_dim, hid_dim)

    def _split_heads(self, tensor):
        """[batch size, length, hid dim] -> [batch size, n heads, length, head dim]"""
        size = tensor.shape[0], tensor.shape[1], self.n_heads, self.hid_dim // self.n_heads
        return tensor.view(*size).permute(0, 2, 1, 3)

    def forward(self, query, key, value, mask=None):
        """mask: 1 at the keys to attend to, broadcast to [batch size, n heads, length, length]"""
        query = self._split_heads(self.query(query))
        key = self._split_heads(self.key(key))
        value = self._split_heads(self.value(value))
        # before
        energy = torch.matmul(query, key.transpose(-1, -2))
        # after
        energy = torch.matmul(query, key.transpose(-1, -2)) / query.size(-1) ** 0.5
        # end
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-inf"))
        attention = self.dropout(torch.softmax(energy, dim=-1))
        output = torch.matmul(attention, value)
        output = output.permute(0, 2, 1, 3).flatten(2)
        return self.output(output)
