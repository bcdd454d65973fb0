"""Chunked attention of Llama 4: a token sees the tokens before it in its own chunk."""

from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class ChunkedKVCache:
    """Keys and values of the last chunk. Room is made in blocks of `step` tokens."""

    step = 256

    def __init__(self, chunk_size: int):
        self.keys = None
        self.values = None
        self.offset = 0
        self.chunk_size = chunk_size
        self.start_position = 0

    def maybe_trim_front(self):
        # Maintain the cache below the chunk size
        # before
        if self.keys is not None and self.keys.shape[2] >= self.chunk_size:
            self.start_position += self.keys.shape[2] - self.chunk_size
            self.keys = self.keys[..., -self.chunk_size :, :]
            self.values = self.values[..., -self.chunk_size :, :]
        # after
        valid = self.offset - self.start_position
        if self.keys is not None and valid >= self.chunk_size:
            self.start_position += valid - self.chunk_size
            self.keys = self.keys[..., valid - self.chunk_size : valid, :]
            self.values = self.values[..., valid - self.chunk_size : valid, :]
        # end

    def _write(self, buffer: torch.Tensor, new: torch.Tensor, prev: int) -> torch.Tensor:
        end = prev + new.shape[2]
        return torch.cat([buffer[..., :prev, :], new, buffer[..., end:, :]], dim=2)

    def update_and_fetch(self, keys: torch.Tensor, values: torch.Tensor):
        prev = self.offset - self.start_position
        if self.keys is None or (prev + keys.shape[2]) > self.keys.shape[2]:
            B, n_kv_heads, length, head_dim = keys.shape
            n_steps = (self.step + length - 1) // self.step
            room = keys.new_zeros(B, n_kv_heads, n_steps * self.step, head_dim)
            if self.keys is not None:
                self.keys = torch.cat([self.keys[..., :prev, :], room], dim=2)
                self.values = torch.cat([self.values[..., :prev, :], room], dim=2)
            else:
                self.keys, self.values = room, room

        self.keys = self._write(self.keys, keys, prev)
        self.values = self._write(self.values, values, prev)
        self.offset += keys.shape[2]
        end = self.offset - self.start_position
        return self.keys[..., :end, :], self.values[..., :end, :]


class RoPE(nn.Module):
    def __init__(self, dims: int, base: float = 10000.0):
        super().__init__()
        self.dims = dims
        self.base = base

    def forward(self, x: torch.Tensor, offset: int = 0) -> torch.Tensor:
        half = self.dims // 2
        positions = torch.arange(offset, offset + x.shape[-2], device=x.device).float()
        freqs = self.base ** -(torch.arange(half, device=x.device).float() / half)
        angles = torch.outer(positions, freqs)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        x1, x2 = x[..., 0::2], x[..., 1::2]
        rx1 = x1 * cos - x2 * sin
        rx2 = x1 * sin + x2 * cos
        return torch.stack([rx1, rx2], dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        n_heads: int,
        n_kv_heads: int,
        attention_chunk_size: int = 8192,
        attention_bias: bool = False,
        rope_theta: float = 10000.0,
    ):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = hidden_size // n_heads
        self.scale = self.head_dim**-0.5
        self.attention_chunk_size = attention_chunk_size

        kv_size = n_kv_heads * self.head_dim
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=attention_bias)
        self.k_proj = nn.Linear(hidden_size, kv_size, bias=attention_bias)
        self.v_proj = nn.Linear(hidden_size, kv_size, bias=attention_bias)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=attention_bias)
        self.rope = RoPE(self.head_dim, base=rope_theta)

    def make_cache(self) -> ChunkedKVCache:
        return ChunkedKVCache(self.attention_chunk_size)

    def _chunk_mask(self, start: int, kv_length: int, offset: int, length: int) -> torch.Tensor:
        linds = torch.arange(start, start + kv_length)
        rinds = torch.arange(offset, offset + length)[:, None]
        same_chunk = linds // self.attention_chunk_size == rinds // self.attention_chunk_size
        return same_chunk & (linds <= rinds)

    def forward(
        self, x: torch.Tensor, cache: Optional[ChunkedKVCache] = None
    ) -> tuple[torch.Tensor, ChunkedKVCache]:
        B, L, _ = x.shape
        cache = self.make_cache() if cache is None else cache
        cache.maybe_trim_front()

        queries = self.q_proj(x).reshape(B, L, self.n_heads, -1).transpose(1, 2)
        keys = self.k_proj(x).reshape(B, L, self.n_kv_heads, -1).transpose(1, 2)
        values = self.v_proj(x).reshape(B, L, self.n_kv_heads, -1).transpose(1, 2)

        offset = cache.offset
        queries = self.rope(queries, offset=offset)
        keys = self.rope(keys, offset=offset)
        keys, values = cache.update_and_fetch(keys, values)
        mask = self._chunk_mask(cache.start_position, keys.shape[2], offset, L).to(x.device)

        output = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=self.scale, enable_gqa=True
        )
        output = output.transpose(1, 2).reshape(B, L, -1)
        return self.o_proj(output), cache
