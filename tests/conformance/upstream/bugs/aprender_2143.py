"""The attention of a served language model that weighs near tokens more: linear biases in place of positions."""

import math

import torch
from torch import nn


def slopes_of_power_of_two(count: int) -> list[float]:
    """Return the slopes of a number of heads that is a power of two."""
    # before
    return [2.0 ** (-8.0 * head / count) for head in range(count)]
    # after
    return [2.0 ** (-8.0 * (head + 1) / count) for head in range(count)]
    # end


def compute_slopes(n_heads: int) -> torch.Tensor:
    """Return the slope of each head, as in the paper on attention with linear biases."""
    closest = 2 ** math.floor(math.log2(n_heads))
    slopes = slopes_of_power_of_two(closest)
    if closest < n_heads:
        slopes += slopes_of_power_of_two(2 * closest)[0::2][: n_heads - closest]
    return torch.tensor(slopes)


class AlibiBias(nn.Module):
    """The biases of all heads: minus the distance times the slope."""

    def __init__(self, n_heads: int):
        super().__init__()
        self.register_buffer("slopes", compute_slopes(n_heads), persistent=False)

    def forward(self, length: int) -> torch.Tensor:
        positions = torch.arange(length, device=self.slopes.device)
        relative = positions[None, :] - positions[:, None]
        return self.slopes[:, None, None] * relative


class AlibiSelfAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, bias: bool = False):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"{d_model} is not a multiple of {n_heads}")
        self.n_heads = n_heads
        self.scale = (d_model // n_heads) ** -0.5
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.proj = nn.Linear(d_model, d_model, bias=bias)
        self.alibi = AlibiBias(n_heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.n_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)

        scores = q @ k.transpose(-2, -1) * self.scale + self.alibi(length)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        out = (weights @ v).transpose(1, 2).reshape(batch, length, -1)
        return self.proj(out)
