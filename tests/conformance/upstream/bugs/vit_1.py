"""The attention of a vision transformer, with queries, keys and values interleaved in one projection."""

import torch
import torch.nn.functional as F
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, emb_size: int = 64, num_heads: int = 4, dropout: float = 0):
        super().__init__()
        self.emb_size = emb_size
        self.num_heads = num_heads
        self.qkv = nn.Linear(emb_size, emb_size * 3)
        self.att_drop = nn.Dropout(dropout)
        self.projection = nn.Linear(emb_size, emb_size)
        # before
        self.scaling = self.emb_size ** (1 / 2)
        # after
        self.scaling = (self.emb_size // num_heads) ** (1 / 2)
        # end

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        qkv = self.qkv(x).view(b, n, self.num_heads, -1, 3).permute(4, 0, 2, 1, 3)
        queries, keys, values = qkv[0], qkv[1], qkv[2]
        energy = torch.einsum("bhqd, bhkd -> bhqk", queries, keys) / self.scaling
        if mask is not None:
            fill_value = torch.finfo(energy.dtype).min
            energy = energy.masked_fill(~mask, fill_value)
        att = F.softmax(energy, dim=-1)
        att = self.att_drop(att)
        out = torch.einsum("bhal, bhlv -> bhav ", att, values)
        out = out.permute(0, 2, 1, 3).reshape(b, n, -1)
        return self.projection(out)
