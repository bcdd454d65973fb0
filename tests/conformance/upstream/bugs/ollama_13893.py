"""Latent attention of GLM-4.7-Flash: the cache holds one latent for each token, and all heads read it."""

from typing import Optional

import torch
from torch import Tensor, nn


def rope(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate pairs of neighbours. x: (batch, heads, tokens, dim)."""
    dim = x.shape[-1]
    freqs = base ** -(torch.arange(0, dim, 2, device=x.device).float() / dim)
    angles = positions.float()[:, None] * freqs
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return torch.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1).flatten(-2)


class Attention(nn.Module):
    """
    The projections from the latent to the keys and to the values are absorbed: the queries are taken to the space of
    the latents, attend there, and what they read is taken to the values of each head.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        q_lora_rank: int,
        kv_lora_rank: int,
        qk_nope_head_dim: int,
        qk_rope_head_dim: int,
        v_head_dim: int,
        rope_base: float = 10000.0,
        eps: float = 1e-5,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.rope_base = rope_base
        # before
        self.kq_scale = (kv_lora_rank + qk_rope_head_dim) ** -0.5
        # after
        self.kq_scale = (qk_nope_head_dim + qk_rope_head_dim) ** -0.5
        # end

        self.q_a = nn.Linear(hidden_size, q_lora_rank, bias=False)
        self.q_a_norm = nn.RMSNorm(q_lora_rank, eps=eps)
        self.q_b = nn.Linear(
            q_lora_rank, num_heads * (qk_nope_head_dim + qk_rope_head_dim), bias=False
        )
        self.kv_a = nn.Linear(hidden_size, kv_lora_rank + qk_rope_head_dim, bias=False)
        self.kv_a_norm = nn.RMSNorm(kv_lora_rank, eps=eps)
        self.k_b = nn.Parameter(
            torch.randn(num_heads, qk_nope_head_dim, kv_lora_rank) * kv_lora_rank**-0.5
        )
        self.v_b = nn.Parameter(
            torch.randn(num_heads, v_head_dim, kv_lora_rank) * kv_lora_rank**-0.5
        )
        self.output = nn.Linear(num_heads * v_head_dim, hidden_size, bias=False)

    def forward(
        self, hidden_states: Tensor, cache: Optional[Tensor] = None
    ) -> tuple[Tensor, Tensor]:
        """
        hidden_states: (batch, tokens, hidden_size)
        cache: (batch, 1, earlier tokens, kv_lora_rank + qk_rope_head_dim), from the call before
        """
        batch, seq_len, _ = hidden_states.shape
        past = 0 if cache is None else cache.shape[2]
        positions = torch.arange(past, past + seq_len, device=hidden_states.device)

        query = self.q_b(self.q_a_norm(self.q_a(hidden_states)))
        query = query.view(batch, seq_len, self.num_heads, -1).transpose(1, 2)
        q_pass, q_rot = query.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q_rot = rope(q_rot, positions, self.rope_base)

        compressed = self.kv_a(hidden_states).unsqueeze(1)
        kv, k_rot = compressed.split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        kv, k_rot = self.kv_a_norm(kv), rope(k_rot, positions, self.rope_base)

        query = torch.cat([q_pass @ self.k_b, q_rot], dim=-1)
        key = torch.cat([kv, k_rot], dim=-1)
        if cache is not None:
            key = torch.cat([cache, key], dim=2)

        scores = query @ key.transpose(-2, -1) * self.kq_scale
        later = torch.arange(key.shape[2], device=hidden_states.device) > positions[:, None]
        weights = scores.masked_fill(later, float("-inf")).softmax(dim=-1)

        latents = weights @ key[..., : self.kv_lora_rank]
        attention = latents @ self.v_b.transpose(-2, -1)
        return self.output(attention.transpose(1, 2).flatten(2)), key
