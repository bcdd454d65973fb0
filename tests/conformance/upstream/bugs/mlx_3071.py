"""Attention with linear biases (ALiBi), for any number of heads."""

import math

import torch
from torch import nn


class ALiBi(nn.Module):
    """Adds to the scores of each head a bias that falls with the distance."""

    @staticmethod
    def create_alibi_matrix(q_sequence_length, k_sequence_length, num_heads, offset, dtype):
        x1 = torch.arange(offset, q_sequence_length, dtype=dtype)
        x2 = torch.arange(0, k_sequence_length, dtype=dtype)
        distance_matrix = -(x1[:, None] - x2[None, :]).abs()
        slope = ALiBi.create_alibi_slope(num_heads).to(dtype)
        return distance_matrix[None, None] * slope

    @staticmethod
    def create_alibi_slope(num_heads):
        """Return the slopes of the heads, of shape (heads, 1, 1)."""
        # before
        x = (2**8) ** (1 / num_heads)
        slopes = torch.pow(x, -torch.arange(1, num_heads + 1, dtype=torch.float64))

        # after
        def power_of_2(n):
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start ** (i + 1) for i in range(n)]

        closest = 2 ** math.floor(math.log2(num_heads))
        slopes = power_of_2(closest)
        if closest < num_heads:
            slopes += power_of_2(2 * closest)[0::2][: num_heads - closest]
        slopes = torch.tensor(slopes, dtype=torch.float64)
        # end
        return slopes[:, None, None]

    def forward(self, attention_scores, offset=0, mask=None):
        alibi_mask = ALiBi.create_alibi_matrix(
            q_sequence_length=attention_scores.shape[-2] + offset,
            k_sequence_length=attention_scores.shape[-1],
            num_heads=attention_scores.shape[1],
            offset=offset,
            dtype=attention_scores.dtype,
        )
        if mask is not None:
            alibi_mask = alibi_mask + mask
        return attention_scores + alibi_mask.to(attention_scores.device)


class AlibiAttention(nn.Module):
    """Causal self-attention whose only positions are the biases."""

    def __init__(self, dims: int, num_heads: int = 6):
        super().__init__()
        self.num_heads = num_heads
        self.query_proj = nn.Linear(dims, dims, bias=False)
        self.key_proj = nn.Linear(dims, dims, bias=False)
        self.value_proj = nn.Linear(dims, dims, bias=False)
        self.out_proj = nn.Linear(dims, dims, bias=False)
        self.alibi = ALiBi()

    def forward(self, x):
        B, L, D = x.shape
        queries = self.query_proj(x).reshape(B, L, self.num_heads, -1).transpose(1, 2)
        keys = self.key_proj(x).reshape(B, L, self.num_heads, -1).transpose(1, 2)
        values = self.value_proj(x).reshape(B, L, self.num_heads, -1).transpose(1, 2)
        scores = (queries * math.sqrt(1 / queries.shape[-1])) @ keys.transpose(-1, -2)
        mask = torch.full((L, L), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        scores = self.alibi(scores, mask=mask).softmax(dim=-1)
        return self.out_proj((scores @ values).transpose(1, 2).reshape(B, L, D))
