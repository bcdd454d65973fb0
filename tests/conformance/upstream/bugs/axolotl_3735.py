"""Training of diffusion language models: every token sees the tokens before it and after it."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def create_bidirectional_attention_mask(
    hidden_states: torch.Tensor,
    attention_mask: Optional[torch.Tensor] = None,
    sample_packing: bool = False,
) -> torch.Tensor:
    """
    Create the mask of bidirectional attention, which replaces the causal one.

    Args:
        hidden_states: Tokens of shape (batch, seq_len, hidden_size).
        attention_mask: Mask of shape (batch, seq_len). It is 0 at padding. With sample packing, it holds the number of
            the sample that a token belongs to, counted from 1; else it is 1 at tokens.
        sample_packing: Whether several samples share a row.

    Returns:
        Mask of shape (batch, 1, seq_len, seq_len), True where a token is seen.
    """
    batch_size, seq_len = hidden_states.shape[:2]
    device = hidden_states.device

    # before
    no_mask = attention_mask is None or not sample_packing
    # after
    if attention_mask is not None and not sample_packing:
        not_padding = attention_mask.bool()
        return not_padding[:, None, None, :].expand(batch_size, 1, seq_len, seq_len)
    no_mask = attention_mask is None
    # end
    if no_mask:
        return torch.ones(batch_size, 1, seq_len, seq_len, dtype=torch.bool, device=device)

    # tokens of the same sample see each other; padding is no sample
    same_sample = attention_mask[:, :, None] == attention_mask[:, None, :]
    not_padding = (attention_mask != 0)[:, None, :]
    return (same_sample & not_padding).unsqueeze(1)


class DiffusionAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        sample_packing: bool = False,
        attention_bias: bool = False,
    ):
        super().__init__()
        self.head_dim = hidden_size // num_attention_heads
        self.sample_packing = sample_packing
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=attention_bias)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=attention_bias)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=attention_bias)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=attention_bias)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        bidirectional_mask = create_bidirectional_attention_mask(
            hidden_states, attention_mask, sample_packing=self.sample_packing
        )
        query_states, key_states, value_states = (
            proj(hidden_states).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        attn_output = F.scaled_dot_product_attention(
            query_states, key_states, value_states, attn_mask=bidirectional_mask
        )
        return self.o_proj(attn_output.transpose(1, 2).flatten(2))
