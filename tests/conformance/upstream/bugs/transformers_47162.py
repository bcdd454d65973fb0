"""The encoder of streaming speech recognition: a frame sees some frames back and a few ahead (Moonshine)."""

from collections.abc import Callable
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def sliding_window_mask_function(sliding_window: tuple[int, int]) -> Callable:
    """Return whether a query sees a key: one of `left` frames, the query among them, or of `right` frames ahead."""

    def inner_mask(q_idx, kv_idx):
        left_window_size, right_window_size = sliding_window
        dist = q_idx - kv_idx
        left_mask = (dist >= 0) & (dist < left_window_size)
        # before
        right_mask = (dist < 0) & (-dist < right_window_size)
        # after
        right_mask = (dist < 0) & (-dist <= right_window_size)
        # end
        return left_mask | right_mask

    return inner_mask


class MoonshineStreamingAttention(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int):
        super().__init__()
        self.head_dim = hidden_size // num_attention_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            proj(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        attn_output = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        return self.o_proj(attn_output.transpose(1, 2).flatten(2))


class MoonshineStreamingEncoderLayer(nn.Module):
    """
    Args:
        hidden_size: Size of a frame.
        num_attention_heads: Number of heads.
        sliding_window: How many frames are seen back, with the frame itself, and how many ahead.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        sliding_window: tuple[int, int] = (16, 4),
    ):
        super().__init__()
        self.sliding_window = sliding_window
        self.input_layernorm = nn.LayerNorm(hidden_size, bias=False)
        self.self_attn = MoonshineStreamingAttention(hidden_size, num_attention_heads)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """hidden_states: (batch, frames, hidden_size). attention_mask: 1 at frames, 0 at padding, (batch, frames)."""
        positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        mask = sliding_window_mask_function(self.sliding_window)(positions[:, None], positions)
        if attention_mask is not None:
            # a frame always sees itself, also in the padding
            itself = positions[:, None] == positions
            mask = mask & attention_mask[:, None, None, :].bool() | itself
        return hidden_states + self.self_attn(self.input_layernorm(hidden_states), mask)
