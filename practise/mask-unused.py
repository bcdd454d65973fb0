"""Causal self-attention of a small language model, with one projection for queries, keys and values."""

import math

import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    """Token i attends to tokens 0 … i. There are `heads` heads, and dropout acts on the weights."""

    def __init__(self, width, heads, context=64, p_drop=0.1):
        super().__init__()
        assert width % heads == 0
        self.heads = heads
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        self.drop = nn.Dropout(p_drop)
        future = torch.triu(torch.ones(context, context), diagonal=1).bool()
        self.register_buffer("future", future, persistent=False)

    def split(self, x):
        """Split (batch, tokens, width) into (batch, heads, tokens, head size)."""
        batch, tokens, width = x.shape
        return x.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x):
        batch, tokens, width = x.shape
        query, key, value = map(self.split, self.to_qkv(x).chunk(3, dim=-1))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        scores.masked_fill(self.future[:tokens, :tokens], float("-inf"))
        weights = self.drop(torch.softmax(scores, dim=-1))
        context = (weights @ value).transpose(1, 2)
        return self.to_out(context.reshape(batch, tokens, width))
