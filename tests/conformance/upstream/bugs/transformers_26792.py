"""A decoder's attention over a sliding window, with a cache."""

from typing import Optional

import torch
from torch import nn


def _make_sliding_window_causal_mask(
    tgt_len: int,
    dtype: torch.dtype,
    device: torch.device,
    past_key_values_length: int = 0,
    sliding_window: int = 4096,
):
    """Make the additive mask of a causal attention over a sliding window."""
    mask = torch.ones(tgt_len, tgt_len + past_key_values_length, dtype=dtype, device=device)
    mask = torch.tril(mask, diagonal=past_key_values_length)
    # before
    mask = torch.triu(mask, diagonal=past_key_values_length - sliding_window)
    # after
    mask = torch.triu(mask, diagonal=past_key_values_length - sliding_window + 1)
    # end
    return torch.log(mask)[None, None]


class MistralAttention(nn.Module):
    """Multi-headed attention, modified to use sliding window attention: each token sees `sliding_window` tokens."""

    def __init__(self, hidden_size: int, num_heads: int, sliding_window: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def _shape(self, tensor: torch.Tensor, seq_len: int, bsz: int):
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_value: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        bsz, q_len, _ = hidden_states.size()
        query_states = self._shape(self.q_proj(hidden_states), q_len, bsz)
        key_states = self._shape(self.k_proj(hidden_states), q_len, bsz)
        value_states = self._shape(self.v_proj(hidden_states), q_len, bsz)
        past_len = 0
        if past_key_value is not None:
            past_len = past_key_value[0].shape[-2]
            key_states = torch.cat([past_key_value[0], key_states], dim=2)
            value_states = torch.cat([past_key_value[1], value_states], dim=2)
        attention_mask = _make_sliding_window_causal_mask(
            q_len, hidden_states.dtype, hidden_states.device, past_len, self.sliding_window
        )
        attn_weights = query_states @ key_states.transpose(2, 3) * self.head_dim**-0.5
        attn_weights = nn.functional.softmax(attn_weights + attention_mask, dim=-1)
        attn_output = torch.matmul(attn_weights, value_states)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(attn_output), (key_states, value_states)
