"""The gated layers through which a language model looks at the images that a text has shown so far."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class IdeficsRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * hidden_states * torch.rsqrt(variance + self.variance_epsilon)


class IdeficsAttention(nn.Module):
    """Cross-attention from text to images"""

    def __init__(self, hidden_size: int, num_heads: int, kv_input_dim: int, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(kv_input_dim, hidden_size, bias=False)
        self.v_proj = nn.Linear(kv_input_dim, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states, key_value_states, attention_mask=None):
        query_states, key_states, value_states = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in (
                self.q_proj(hidden_states),
                self.k_proj(key_value_states),
                self.v_proj(key_value_states),
            )
        )
        attn_output = F.scaled_dot_product_attention(
            query_states,
            key_states,
            value_states,
            attn_mask=attention_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.o_proj(attn_output.transpose(1, 2).flatten(2))


class IdeficsGatedCrossAttentionLayer(nn.Module):
    def __init__(
        self,
        hidden_size: int = 32,
        num_attention_heads: int = 4,
        vision_dim: int = 32,
        intermediate_size: int = 64,
        dropout: float = 0.0,
        alpha_initializer: str = "ones",
    ):
        super().__init__()
        self.cross_attn = IdeficsAttention(hidden_size, num_attention_heads, vision_dim, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, intermediate_size, bias=False),
            nn.SiLU(),
            nn.Linear(intermediate_size, hidden_size, bias=False),
        )
        self.input_layernorm = IdeficsRMSNorm(hidden_size)
        self.post_attention_layernorm = IdeficsRMSNorm(hidden_size)
        if alpha_initializer not in ("zeros", "ones"):
            raise NotImplementedError(f"Alpha initialization {alpha_initializer} not implemented")
        alpha = 0.0 if alpha_initializer == "zeros" else 1.0
        self.alpha_cross_attn = nn.Parameter(torch.full((1, 1, hidden_size), alpha))
        self.alpha_dense = nn.Parameter(torch.full((1, 1, hidden_size), alpha))

    def forward(
        self,
        hidden_states: torch.Tensor,
        image_hidden_states: torch.Tensor,
        image_attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        Args:
            hidden_states: text, of shape (batch, seq_len, hidden_size)
            image_hidden_states: images, of shape (batch, num_images, image_seq_len, vision_dim)
            image_attention_mask: 1 at the images that a token comes after, of shape (batch, seq_len, num_images)
        """
        batch_size, num_images, image_seq_len, _ = image_hidden_states.shape
        text_seq_len = hidden_states.size(1)
        image_hidden_states = image_hidden_states.flatten(1, 2)

        if image_attention_mask is None:
            image_attention_mask = hidden_states.new_ones(batch_size, text_seq_len, num_images)
        image_attention_mask = image_attention_mask.repeat_interleave(image_seq_len, dim=-1)
        inverted_mask = 1.0 - image_attention_mask.to(hidden_states.dtype)[:, None]
        min_value = torch.finfo(hidden_states.dtype).min
        image_attention_mask = inverted_mask.masked_fill(inverted_mask.bool(), min_value)

        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = self.cross_attn(
            hidden_states, image_hidden_states, attention_mask=image_attention_mask
        )
        # before
        hidden_states = residual + torch.tanh(self.alpha_cross_attn) * hidden_states
        # after
        # tokens before the first image see no image at all
        cross_attention_gate = (image_attention_mask == 0.0).any(dim=-1).squeeze(1)
        hidden_states = hidden_states.masked_fill(~cross_attention_gate.unsqueeze(-1), 0.0)
        hidden_states = residual + torch.tanh(self.alpha_cross_attn) * hidden_states
        # end

        residual = hidden_states
        hidden_states = self.mlp(self.post_attention_layernorm(hidden_states))
        return residual + torch.tanh(self.alpha_dense) * hidden_states
