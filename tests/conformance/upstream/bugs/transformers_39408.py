"""A decoder's attention with a sliding window, by a kernel whose window counts the keys to the left."""

from typing import Optional

import torch
from torch import nn


def flash_attention(query, key, value, causal, window_size=(-1, -1)):
    """Attend from position i to the keys in [i - window_size[0], i + window_size[1]], both included."""
    left, right = window_size
    i = torch.arange(query.shape[-2], device=query.device)[:, None]
    j = torch.arange(key.shape[-2], device=query.device)[None, :]
    allowed = j <= i if causal else torch.ones_like(j - i, dtype=torch.bool)
    if left >= 0:
        allowed = allowed & (j >= i - left)
    if right >= 0:
        allowed = allowed & (j <= i + right)
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.softmax(scores, dim=-1) @ value


class MistralAttention(nn.Module):
    """
    Multi-headed attention from 'Attention Is All You Need' paper, in which each token attends to
    `sliding_window` tokens, itself included.
    """

    def __init__(self, hidden_size: int, num_heads: int, sliding_window: Optional[int] = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        shape = (*hidden_states.shape[:-1], self.num_heads, self.head_dim)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        flash_kwargs = {}
        if self.sliding_window is not None:
            # before
            flash_kwargs["window_size"] = (self.sliding_window, self.sliding_window)
            # after
            flash_kwargs["window_size"] = (self.sliding_window - 1, self.sliding_window - 1)
            # end
        output = flash_attention(query, key, value, causal=True, **flash_kwargs)
        output = output.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)
        return self.o_proj(output)
