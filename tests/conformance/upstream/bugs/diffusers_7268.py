"""A transformer of a video diffusion model: attention in each frame, then over the frames at each pixel (Diffusers)."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(
        self, query_dim: int, heads: int, dim_head: int, cross_attention_dim: Optional[int] = None
    ):
        super().__init__()
        inner_dim = heads * dim_head
        self.heads = heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(cross_attention_dim or query_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(cross_attention_dim or query_dim, inner_dim, bias=False)
        self.to_out = nn.Linear(inner_dim, query_dim)

    def forward(self, hidden_states, encoder_hidden_states=None):
        if encoder_hidden_states is None:
            encoder_hidden_states = hidden_states
        query = self.to_q(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key = self.to_k(encoder_hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        value = self.to_v(encoder_hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        hidden_states = F.scaled_dot_product_attention(query, key, value)
        return self.to_out(hidden_states.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    def __init__(self, dim: int, heads: int, dim_head: int, cross_attention_dim: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn1 = Attention(dim, heads, dim_head)
        self.norm2 = nn.LayerNorm(dim)
        self.attn2 = Attention(dim, heads, dim_head, cross_attention_dim)

    def forward(self, hidden_states, encoder_hidden_states):
        hidden_states = hidden_states + self.attn1(self.norm1(hidden_states))
        return hidden_states + self.attn2(self.norm2(hidden_states), encoder_hidden_states)


class TransformerSpatioTemporalModel(nn.Module):
    """
    Parameters:
        num_attention_heads: The number of heads.
        attention_head_dim: The size of a head.
        in_channels: The number of channels of a frame.
        cross_attention_dim: The size of a token of the prompt.
    """

    def __init__(
        self,
        num_attention_heads: int,
        attention_head_dim: int,
        in_channels: int,
        cross_attention_dim: int,
    ):
        super().__init__()
        sizes = (in_channels, num_attention_heads, attention_head_dim, cross_attention_dim)
        self.transformer_block = TransformerBlock(*sizes)
        self.temporal_transformer_block = TransformerBlock(*sizes)
        self.mix_factor = nn.Parameter(torch.tensor(0.5))
        self.proj_out = nn.Linear(in_channels, in_channels)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        image_only_indicator: torch.Tensor,
    ) -> torch.Tensor:
        """
        hidden_states: The frames of all videos, (batch * frames, channels, height, width).
        encoder_hidden_states: The prompt of each frame, (batch * frames, tokens, cross_attention_dim).
        image_only_indicator: True where a frame stands for itself, (batch, frames).
        """
        batch_frames, _, height, width = hidden_states.shape
        batch_size, num_frames = image_only_indicator.shape
        residual = hidden_states

        time_context = encoder_hidden_states.unflatten(0, (batch_size, num_frames))
        time_context_first_timestep = time_context[:, 0]
        # before
        time_context = time_context_first_timestep[None].expand(height * width, -1, -1, -1)
        # after
        time_context = time_context_first_timestep[:, None].expand(-1, height * width, -1, -1)
        # end
        time_context = time_context.flatten(0, 1)

        hidden_states = hidden_states.flatten(2).transpose(1, 2)
        hidden_states = self.transformer_block(hidden_states, encoder_hidden_states)

        # (batch * frames, pixels, channels) -> (batch * pixels, frames, channels)
        mixed = hidden_states.unflatten(0, (batch_size, num_frames)).transpose(1, 2).flatten(0, 1)
        mixed = self.temporal_transformer_block(mixed, time_context)
        mixed = mixed.unflatten(0, (batch_size, height * width)).transpose(1, 2).flatten(0, 1)

        alpha = torch.sigmoid(self.mix_factor)
        alpha = torch.where(image_only_indicator, torch.ones_like(alpha), alpha).view(-1, 1, 1)
        hidden_states = alpha * hidden_states + (1 - alpha) * mixed
        hidden_states = self.proj_out(hidden_states).transpose(1, 2)
        return hidden_states.reshape(batch_frames, -1, height, width) + residual
