"""Causal attention of a small language model, one module per head."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Head(nn.Module):
    """A single attention head.

    Args:
        head_size (int): Size of the keys, queries and values.
        n_embed (int): Size of the token embedding.
        context_length (int): Longest sequence that is attended to.
    """

    def __init__(self, head_size: int, n_embed: int, context_length: int) -> None:
        super().__init__()
        self.key = nn.Linear(n_embed, head_size, bias=False)
        self.query = nn.Linear(n_embed, head_size, bias=False)
        self.value = nn.Linear(n_embed, head_size, bias=False)
        # Lower triangle: a token sees itself and what came before
        self.register_buffer("tril", torch.tril(torch.ones(context_length, context_length)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        k = self.key(x)
        q = self.query(x)
        # before
        scale_factor = 1 / math.sqrt(C)
        # after
        scale_factor = 1 / math.sqrt(k.size(-1))
        # end
        # (B, T, head_size) @ (B, head_size, T) -> (B, T, T)
        attn_weights = q @ k.transpose(-2, -1) * scale_factor
        attn_weights = attn_weights.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        attn_weights = F.softmax(attn_weights, dim=-1)
        v = self.value(x)
        return attn_weights @ v


class MultiHeadAttention(nn.Module):
    """Several heads next to each other.

    Args:
        n_head (int): Number of heads.
        n_embed (int): Size of the token embedding.
        context_length (int): Longest sequence that is attended to.
    """

    def __init__(self, n_head: int, n_embed: int, context_length: int) -> None:
        super().__init__()
        head_size = n_embed // n_head
        self.heads = nn.ModuleList(
            [Head(head_size, n_embed, context_length) for _ in range(n_head)]
        )
        self.proj = nn.Linear(n_embed, n_embed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Every head has its own slice of the output
        x = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.proj(x)
