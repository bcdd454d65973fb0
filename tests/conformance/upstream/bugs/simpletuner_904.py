"""Joint attention of the Flux transformer, with a mask for the padded tokens of the prompt."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class FluxAttention(nn.Module):
    """Projections of the image stream and of the text stream. The processor attends over both."""

    def __init__(self, query_dim: int, heads: int = 8, dim_head: int = 64, eps: float = 1e-6):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.norm_q = nn.RMSNorm(dim_head, eps=eps)
        self.norm_k = nn.RMSNorm(dim_head, eps=eps)
        self.norm_added_q = nn.RMSNorm(dim_head, eps=eps)
        self.norm_added_k = nn.RMSNorm(dim_head, eps=eps)
        self.to_q = nn.Linear(query_dim, inner_dim)
        self.to_k = nn.Linear(query_dim, inner_dim)
        self.to_v = nn.Linear(query_dim, inner_dim)
        self.add_q_proj = nn.Linear(query_dim, inner_dim)
        self.add_k_proj = nn.Linear(query_dim, inner_dim)
        self.add_v_proj = nn.Linear(query_dim, inner_dim)
        self.to_out = nn.ModuleList([nn.Linear(inner_dim, query_dim), nn.Dropout(0.0)])
        self.to_add_out = nn.Linear(inner_dim, query_dim)

    def _heads(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        text_len = encoder_hidden_states.shape[1]
        query = self.norm_q(self._heads(self.to_q(hidden_states)))
        key = self.norm_k(self._heads(self.to_k(hidden_states)))
        value = self._heads(self.to_v(hidden_states))

        added_query = self.norm_added_q(self._heads(self.add_q_proj(encoder_hidden_states)))
        added_key = self.norm_added_k(self._heads(self.add_k_proj(encoder_hidden_states)))
        added_value = self._heads(self.add_v_proj(encoder_hidden_states))

        # the text stream comes first
        query = torch.cat([added_query, query], dim=2)
        key = torch.cat([added_key, key], dim=2)
        value = torch.cat([added_value, value], dim=2)

        if attention_mask is not None:
            attention_mask = attention_mask.to(torch.bool)[:, None, None, :]
        joint = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        joint = joint.transpose(1, 2).flatten(2)

        encoder_hidden_states, hidden_states = joint[:, :text_len], joint[:, text_len:]
        hidden_states = self.to_out[1](self.to_out[0](hidden_states))
        return hidden_states, self.to_add_out(encoder_hidden_states)


class FluxTransformerBlock(nn.Module):
    r"""
    A transformer block of the MMDiT architecture, with a stream for the image and one for the text.

    Parameters:
        dim (`int`): The number of channels in the input and output.
        num_attention_heads (`int`): The number of heads to use for multi-head attention.
        attention_head_dim (`int`): The number of channels in each head.
    """

    def __init__(self, dim: int, num_attention_heads: int, attention_head_dim: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm1_context = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = FluxAttention(dim, heads=num_attention_heads, dim_head=attention_head_dim)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            hidden_states: Latent patches, `(batch, image tokens, dim)`.
            encoder_hidden_states: The prompt, `(batch, text tokens, dim)`.
            attention_mask: `(batch, text tokens)`, 1 for words of the prompt and 0 for padding.
        """
        norm_hidden_states = self.norm1(hidden_states)
        norm_encoder_hidden_states = self.norm1_context(encoder_hidden_states)

        if attention_mask is not None:
            image_mask = attention_mask.new_ones(hidden_states.shape[:2])
            # before
            attention_mask = torch.cat([image_mask, attention_mask], dim=1)
            # after
            attention_mask = torch.cat([attention_mask, image_mask], dim=1)
            # end

        attn_output, context_attn_output = self.attn(
            norm_hidden_states, norm_encoder_hidden_states, attention_mask=attention_mask
        )
        hidden_states = hidden_states + attn_output
        encoder_hidden_states = encoder_hidden_states + context_attn_output
        return encoder_hidden_states, hidden_states
