"""The attention of a U-Net that removes noise from images, for versions of torch without a fused kernel."""

import math
from typing import Optional

import torch
from torch import nn


class AttentionBlock(nn.Module):
    """
    An attention block that lets the places of an image attend to each other.

    Parameters:
        channels (`int`): The number of channels of the input and the output.
        num_head_channels (`int`, *optional*): The number of channels of a head; one head if `None`.
        norm_num_groups (`int`, defaults to 32): The number of groups of the normalization.
        rescale_output_factor (`float`, defaults to 1.0): The output is divided by this.
        eps (`float`, defaults to 1e-5): The epsilon of the normalization.
    """

    def __init__(
        self,
        channels: int,
        num_head_channels: Optional[int] = None,
        norm_num_groups: int = 32,
        rescale_output_factor: float = 1.0,
        eps: float = 1e-5,
    ):
        super().__init__()
        self.channels = channels
        self.num_heads = 1 if num_head_channels is None else channels // num_head_channels
        self.group_norm = nn.GroupNorm(norm_num_groups, channels, eps=eps, affine=True)
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.rescale_output_factor = rescale_output_factor
        self.proj_attn = nn.Linear(channels, channels, bias=True)

    def reshape_heads_to_batch_dim(self, tensor):
        batch_size, seq_len, dim = tensor.shape
        head_size = self.num_heads
        tensor = tensor.reshape(batch_size, seq_len, head_size, dim // head_size)
        return tensor.permute(0, 2, 1, 3).reshape(batch_size * head_size, seq_len, dim // head_size)

    def reshape_batch_dim_to_heads(self, tensor):
        batch_size, seq_len, dim = tensor.shape
        head_size = self.num_heads
        # before
        tensor = tensor.reshape(batch_size // head_size, head_size, seq_len, dim)
        tensor = tensor.permute(0, 2, 1, 3).reshape(batch_size, seq_len, dim * head_size)
        # after
        batch_size = batch_size // head_size
        tensor = tensor.reshape(batch_size, head_size, seq_len, dim)
        tensor = tensor.permute(0, 2, 1, 3).reshape(batch_size, seq_len, dim * head_size)
        # end
        return tensor

    def forward(self, hidden_states):
        residual = hidden_states
        batch, channel, height, width = hidden_states.shape

        hidden_states = self.group_norm(hidden_states)
        hidden_states = hidden_states.view(batch, channel, height * width).transpose(1, 2)

        query = self.reshape_heads_to_batch_dim(self.query(hidden_states))
        key = self.reshape_heads_to_batch_dim(self.key(hidden_states))
        value = self.reshape_heads_to_batch_dim(self.value(hidden_states))

        scale = 1 / math.sqrt(self.channels / self.num_heads)
        attention_scores = torch.bmm(query, key.transpose(-1, -2)) * scale
        attention_probs = attention_scores.softmax(dim=-1)
        hidden_states = torch.bmm(attention_probs, value)
        hidden_states = self.reshape_batch_dim_to_heads(hidden_states)

        hidden_states = self.proj_attn(hidden_states)
        hidden_states = hidden_states.transpose(-1, -2).reshape(batch, channel, height, width)
        return (hidden_states + residual) / self.rescale_output_factor
