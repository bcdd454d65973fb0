"""Faster attention of diffusion transformers: in some steps, an image token sees the tokens near it only."""

import torch
import torch.nn as nn


def flash_attn_func(q, k, v, causal=False, window_size=(-1, -1)):
    """
    Attention on tensors of shape (batch, length, heads, head_dim).

    window_size: how many keys to the left and to the right of a query it sees; a negative number means all of them.
    """
    tgt_len, src_len = q.size(1), k.size(1)
    offset = (
        torch.arange(src_len, device=q.device) - torch.arange(tgt_len, device=q.device)[:, None]
    )
    hidden = torch.zeros_like(offset, dtype=torch.bool)
    left, right = window_size
    if left >= 0:
        hidden |= offset < -left
    if right >= 0:
        hidden |= offset > right
    if causal:
        hidden |= offset > 0
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.size(-1) ** 0.5
    attn = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", attn, v)


class FastAttention(nn.Module):
    """
    Self-attention of a DiT block.

    Args:
        dim: Size of a token.
        heads: Number of heads.
        window_size: How many tokens are seen to each side in windowed steps.
        steps_method: For each step of the diffusion, "full_attn" or "window_attn".
        qkv_bias: Whether the projections have a bias.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        window_size: int = 64,
        steps_method: tuple = ("window_attn",),
        qkv_bias: bool = True,
    ):
        super().__init__()
        self.heads = heads
        # before
        self.window_size = [-window_size, window_size]
        # after
        self.window_size = [window_size, window_size]
        # end
        self.steps_method = steps_method
        self.to_q = nn.Linear(dim, dim, bias=qkv_bias)
        self.to_k = nn.Linear(dim, dim, bias=qkv_bias)
        self.to_v = nn.Linear(dim, dim, bias=qkv_bias)
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.0))

    def forward(self, hidden_states: torch.Tensor, stepi: int = 0) -> torch.Tensor:
        batch_size, sequence_length, dim = hidden_states.shape
        query = self.to_q(hidden_states)
        key = self.to_k(hidden_states)
        value = self.to_v(hidden_states)

        head_dim = dim // self.heads
        query = query.view(batch_size, -1, self.heads, head_dim)
        key = key.view(batch_size, -1, self.heads, head_dim)
        value = value.view(batch_size, -1, self.heads, head_dim)

        method = self.steps_method[stepi]
        if method == "full_attn":
            hidden_states = flash_attn_func(query, key, value)
        elif method == "window_attn":
            hidden_states = flash_attn_func(query, key, value, window_size=self.window_size)
        else:
            raise NotImplementedError(method)

        hidden_states = hidden_states.reshape(batch_size, sequence_length, dim)
        return self.to_out(hidden_states)
