"""The transformer of a set of notes on neural networks, written with einsum."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    """Attention layer. Each token reads a mixture of the values of all tokens."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.channels_per_head = hidden_size // num_heads
        self.to_q = nn.Linear(hidden_size, hidden_size)
        self.to_k = nn.Linear(hidden_size, hidden_size)
        self.to_v = nn.Linear(hidden_size, hidden_size)
        self.to_out = nn.Linear(hidden_size, hidden_size)

    def forward(self, x):
        # b = batch, q = query tokens, k = key tokens, h = heads, c = channels per head
        heads = (self.num_heads, self.channels_per_head)
        q = self.to_q(x).unflatten(-1, heads)
        k = self.to_k(x).unflatten(-1, heads)
        v = self.to_v(x).unflatten(-1, heads)
        w = torch.einsum("bqhc,bkhc->bhqk", q / math.sqrt(self.channels_per_head), k)
        w = F.softmax(w, dim=-1)
        # before
        y = torch.einsum("bhqk,bkhc->bqhc", w, q)
        # after
        y = torch.einsum("bhqk,bkhc->bqhc", w, v)
        # end
        return self.to_out(y.flatten(2))


class MLP(nn.Module):
    """Two dense layers, applied to each token on its own."""

    def __init__(self, hidden_size, mlp_ratio):
        super().__init__()
        self.up = nn.Linear(hidden_size, hidden_size * mlp_ratio)
        self.down = nn.Linear(hidden_size * mlp_ratio, hidden_size)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class TransformerBlock(nn.Module):
    def __init__(self, hidden_size, num_heads, mlp_ratio):
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size)
        self.attention = Attention(hidden_size, num_heads)
        self.norm2 = nn.LayerNorm(hidden_size)
        self.mlp = MLP(hidden_size, mlp_ratio)

    def forward(self, x):
        # The residual stream: each layer adds its part to it.
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class TransformerBackbone(nn.Module):
    """A stack of blocks over tokens of any kind, (batch, tokens, hidden_size)."""

    def __init__(self, hidden_size, num_heads, depth, mlp_ratio=4):
        super().__init__()
        self.blocks = nn.ModuleList(
            [TransformerBlock(hidden_size, num_heads, mlp_ratio) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
