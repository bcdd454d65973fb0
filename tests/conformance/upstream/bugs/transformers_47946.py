"""A decoder with cross-attention to the states of an encoder (GPT-2 in Transformers)."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class GPT2Attention(nn.Module):
    def __init__(
        self, hidden_size: int, num_attention_heads: int, is_cross_attention: bool = False
    ):
        super().__init__()
        self.num_heads = num_attention_heads
        self.is_cross_attention = is_cross_attention
        if is_cross_attention:
            self.c_attn = nn.Linear(hidden_size, 2 * hidden_size)
            self.q_attn = nn.Linear(hidden_size, hidden_size)
        else:
            self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states, encoder_hidden_states=None, attention_mask=None):
        if self.is_cross_attention:
            query_states = self.q_attn(hidden_states)
            key_states, value_states = self.c_attn(encoder_hidden_states).chunk(2, dim=-1)
        else:
            query_states, key_states, value_states = self.c_attn(hidden_states).chunk(3, dim=-1)
        query_states, key_states, value_states = (
            states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for states in (query_states, key_states, value_states)
        )
        attn_output = F.scaled_dot_product_attention(
            query_states, key_states, value_states, attn_mask=attention_mask
        )
        return self.c_proj(attn_output.transpose(1, 2).flatten(2))


class GPT2Block(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_size)
        self.attn = GPT2Attention(hidden_size, num_attention_heads)
        self.ln_cross_attn = nn.LayerNorm(hidden_size)
        self.crossattention = GPT2Attention(hidden_size, num_attention_heads, True)
        self.ln_2 = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 4 * hidden_size),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * hidden_size, hidden_size),
        )

    def forward(self, hidden_states, causal_mask, encoder_hidden_states, encoder_attention_mask):
        hidden_states = hidden_states + self.attn(
            self.ln_1(hidden_states), attention_mask=causal_mask
        )
        hidden_states = hidden_states + self.crossattention(
            self.ln_cross_attn(hidden_states), encoder_hidden_states, encoder_attention_mask
        )
        return hidden_states + self.mlp(self.ln_2(hidden_states))


def create_causal_mask(inputs_embeds, attention_mask):
    """Return the keys that each query sees, (1 or batch, 1, length, length)."""
    length = inputs_embeds.shape[1]
    causal = inputs_embeds.new_ones(length, length).bool().tril()[None, None]
    if attention_mask is None:
        return causal
    # a token always sees itself
    itself = torch.eye(length, dtype=torch.bool, device=inputs_embeds.device)
    return causal & attention_mask[:, None, None, :].bool() | itself


def create_bidirectional_mask(attention_mask):
    return None if attention_mask is None else attention_mask[:, None, None, :].bool()


class GPT2Model(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int, num_hidden_layers: int = 2):
        super().__init__()
        self.h = nn.ModuleList(
            [GPT2Block(hidden_size, num_attention_heads) for _ in range(num_hidden_layers)]
        )
        self.ln_f = nn.LayerNorm(hidden_size)

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        encoder_attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """The masks are 1 at tokens and 0 at padding, of shape (batch, length)."""
        causal_mask = create_causal_mask(inputs_embeds, attention_mask)
        # before
        encoder_attention_mask = None
        encoder_attention_mask = create_bidirectional_mask(encoder_attention_mask)
        # after
        encoder_attention_mask = create_bidirectional_mask(encoder_attention_mask)
        # end
        hidden_states = inputs_embeds
        for block in self.h:
            hidden_states = block(
                hidden_states, causal_mask, encoder_hidden_states, encoder_attention_mask
            )
        return self.ln_f(hidden_states)
