"""The decoder of a speech recognizer, with a learned embedding of each position."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class WhisperAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (embed_dim // num_heads) ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            project(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        attn = query * self.scaling @ key.transpose(2, 3) + attention_mask
        attn = F.softmax(attn, dim=-1) @ value
        return self.out_proj(attn.transpose(1, 2).flatten(2))


class WhisperDecoder(nn.Module):
    def __init__(self, d_model: int, num_heads: int, max_target_positions: int = 64):
        super().__init__()
        self.embed_positions = nn.Embedding(max_target_positions, d_model)
        self.self_attn = WhisperAttention(d_model, num_heads)
        self.self_attn_layer_norm = nn.LayerNorm(d_model)
        self.layer_norm = nn.LayerNorm(d_model)

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        inputs_embeds: (batch, tokens, d_model). position_ids: (batch, tokens).
        attention_mask: 1 at real tokens and 0 at padding, which is on the left, of shape (batch, tokens).
        """
        seq_len = inputs_embeds.shape[1]
        causal_mask = torch.ones(seq_len, seq_len, dtype=torch.bool, device=inputs_embeds.device)
        visible = causal_mask.tril()[None]
        if attention_mask is not None:
            visible = visible & attention_mask.bool()[:, None, :]
        additive = torch.zeros_like(visible, dtype=inputs_embeds.dtype)
        additive = additive.masked_fill(~visible, torch.finfo(inputs_embeds.dtype).min)

        # before
        if position_ids is None:
            position_ids = torch.arange(seq_len, device=inputs_embeds.device)[None]
        # after
        if position_ids is None and attention_mask is not None:
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
        elif position_ids is None:
            position_ids = torch.arange(seq_len, device=inputs_embeds.device)[None]
        # end
        hidden_states = inputs_embeds + self.embed_positions(position_ids)
        residual = hidden_states
        hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states = residual + self.self_attn(hidden_states, additive[:, None])
        return self.layer_norm(hidden_states)
