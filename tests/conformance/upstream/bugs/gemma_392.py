"""Attention of a small language model: grouped queries, normalised queries, keys and values, and a cache."""

import dataclasses

import torch
from torch import nn

K_MASK = -2.3819763e38  # a large negative number


@dataclasses.dataclass(frozen=True)
class LayerCache:
    """The keys and values of the tokens before. k, v: (B, T, K, H)"""

    k: torch.Tensor
    v: torch.Tensor

    @property
    def length(self) -> int:
        return self.k.shape[1]


class RMSNorm(nn.Module):
    def __init__(self, dim: int, with_scale: bool = True):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(dim) * 0.1) if with_scale else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-06)
        return normed if self.scale is None else normed * (1 + self.scale)


def apply_rope(
    inputs: torch.Tensor, positions: torch.Tensor, *, base_frequency: int = 10_000
) -> torch.Tensor:
    """Applies RoPE.

    Args:
      inputs: Queries or keys of shape [B, L, N, H].
      positions: Positions of the tokens, of shape [L].
      base_frequency: Base frequency of the rotation.
    """
    head_dim = inputs.shape[-1]
    fraction = 2 * torch.arange(head_dim // 2, device=inputs.device) / head_dim
    timescale = base_frequency**fraction
    sinusoid = (positions[:, None] / timescale)[:, None, :]
    sin, cos = sinusoid.sin().to(inputs.dtype), sinusoid.cos().to(inputs.dtype)
    first_half, second_half = inputs.chunk(2, dim=-1)
    return torch.cat(
        [first_half * cos - second_half * sin, second_half * cos + first_half * sin], dim=-1
    )


class Attention(nn.Module):
    """Attention module.

    Attributes:
      num_heads: Number of heads of the queries.
      num_kv_heads: Number of heads of the keys and values.
      features: Width of the model.
      head_dim: Width of a head.
      rope_base_frequency: Base frequency of the rotation.
      query_pre_attn_scalar: What the queries are multiplied by.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        features: int,
        head_dim: int,
        rope_base_frequency: int = 10_000,
        query_pre_attn_scalar: float | None = None,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.rope_base_frequency = rope_base_frequency
        self.query_pre_attn_scalar = query_pre_attn_scalar or head_dim**-0.5
        self.q_einsum = nn.Linear(features, num_heads * head_dim, bias=False)
        self.k_einsum = nn.Linear(features, num_kv_heads * head_dim, bias=False)
        self.v_einsum = nn.Linear(features, num_kv_heads * head_dim, bias=False)
        self.attn_vec_einsum = nn.Linear(num_heads * head_dim, features, bias=False)
        self.query_norm = RMSNorm(head_dim)
        self.key_norm = RMSNorm(head_dim)
        self.value_norm = RMSNorm(head_dim, with_scale=False)

    def forward(
        self, x: torch.Tensor, cache: LayerCache | None = None
    ) -> tuple[torch.Tensor, LayerCache]:
        """Applies attention to x of shape [B, L, D]. Returns the output and the cache with the tokens of x."""
        start = 0 if cache is None else cache.length
        positions = torch.arange(start, start + x.shape[1], device=x.device)

        query_proj = self.q_einsum(x).unflatten(-1, (self.num_heads, self.head_dim))
        key_proj = self.k_einsum(x).unflatten(-1, (self.num_kv_heads, self.head_dim))
        value_proj = self.v_einsum(x).unflatten(-1, (self.num_kv_heads, self.head_dim))

        query_proj = self.query_norm(query_proj)
        query_proj = apply_rope(query_proj, positions, base_frequency=self.rope_base_frequency)
        query_scaled = query_proj * self.query_pre_attn_scalar

        all_positions = torch.arange(start + x.shape[1], device=x.device)
        # before
        if cache is not None:
            key_proj = torch.cat([cache.k, key_proj], dim=1)
            value_proj = torch.cat([cache.v, value_proj], dim=1)
        key_proj = self.key_norm(key_proj)
        value_proj = self.value_norm(value_proj)
        key_proj = apply_rope(key_proj, all_positions, base_frequency=self.rope_base_frequency)
        # after
        key_proj = self.key_norm(key_proj)
        value_proj = self.value_norm(value_proj)
        key_proj = apply_rope(key_proj, positions, base_frequency=self.rope_base_frequency)
        if cache is not None:
            key_proj = torch.cat([cache.k, key_proj], dim=1)
            value_proj = torch.cat([cache.v, value_proj], dim=1)
        # end

        b, t, kg, h = query_scaled.shape
        query_scaled = query_scaled.reshape(b, t, self.num_kv_heads, kg // self.num_kv_heads, h)
        logits = torch.einsum("btkgh,bskh->bkgts", query_scaled, key_proj)
        attn_mask = positions[:, None] >= all_positions[None, :]
        probs = torch.where(attn_mask, logits, K_MASK).softmax(dim=-1)
        encoded = torch.einsum("bkgts,bskh->btkgh", probs, value_proj).reshape(b, t, kg * h)
        return self.attn_vec_einsum(encoded), LayerCache(key_proj, value_proj)
