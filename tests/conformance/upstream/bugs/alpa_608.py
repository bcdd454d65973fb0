"""OPT for serving: attention over a cache of fixed length."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn

Cache = tuple[torch.Tensor, torch.Tensor, int]


@dataclass(frozen=True)
class OPTConfig:
    decoder_embed_dim: int = 32
    decoder_attention_heads: int = 4
    max_target_positions: int = 32


class OPTSelfAttention(nn.Module):
    def __init__(self, config: Optional[OPTConfig] = None):
        super().__init__()
        config = config or OPTConfig()
        self.config = config
        dim, heads = config.decoder_embed_dim, config.decoder_attention_heads
        if dim % heads != 0:
            raise ValueError(f"decoder_embed_dim={dim} cannot be split into {heads} heads")
        self.num_heads = heads
        self.head_dim = dim // heads
        self.qkv_combined = nn.Linear(dim, dim * 3)
        self.out_proj = nn.Linear(dim, dim)

    def init_cache(self, batch_size: int, dtype: torch.dtype = torch.float32) -> Cache:
        """Return an empty cache: keys, values, and the number of tokens in it."""
        shape = (batch_size, self.config.max_target_positions, self.num_heads, self.head_dim)
        return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), 0

    def forward(
        self, hidden_states: torch.Tensor, attention_cache: Optional[Cache] = None
    ) -> tuple[torch.Tensor, Optional[Cache]]:
        batch_size, length = hidden_states.shape[:2]
        qkv = self.qkv_combined(hidden_states)
        qkv = qkv.view(batch_size, length, 3, self.num_heads, self.head_dim)
        query, key, value = qkv.unbind(dim=2)

        if attention_cache is None:
            positions = torch.arange(length, device=hidden_states.device)
            attention_bias = torch.where(positions[:, None] >= positions, 0.0, -1e10)
        else:
            cache_key, cache_value, cache_index = attention_cache
            # write the new tokens to the cache
            cache_key, cache_value = cache_key.clone(), cache_value.clone()
            cache_key[:, cache_index : cache_index + length] = key
            cache_value[:, cache_index : cache_index + length] = value
            key, value = cache_key, cache_value
            num_updated_cache_vectors = length
            max_length = key.shape[1]
            # the part of the cache that holds no tokens must not be seen
            # before
            attention_bias = torch.where(
                torch.arange(max_length, device=key.device)
                < cache_index + num_updated_cache_vectors,
                0.0,
                -1e10,
            )[None, None, None, :]
            # after
            last_seen = cache_index + torch.arange(num_updated_cache_vectors, device=key.device)
            attention_bias = torch.where(
                torch.arange(max_length, device=key.device) <= last_seen[:, None], 0.0, -1e10
            )[None, None]
            # end
            attention_cache = key, value, cache_index + num_updated_cache_vectors

        attn_weights = torch.einsum("bqhd,bkhd->bhqk", query, key) / self.head_dim**0.5
        attn_weights = attn_weights + attention_bias.to(attn_weights.dtype)
        attn_weights = attn_weights.softmax(dim=-1)
        attn_output = torch.einsum("bhqk,bkhd->bqhd", attn_weights, value)
        attn_output = self.out_proj(attn_output.reshape(batch_size, length, -1))
        return attn_output, attention_cache
