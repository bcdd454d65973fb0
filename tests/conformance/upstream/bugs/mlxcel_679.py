"""Sliding-window attention of a language model, with a cache that keeps one window of keys and values."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class RotatingKVCache:
    """
    max_size: how many tokens the window holds
    keys, values: (B, n_kv_heads, tokens, head_dim), in temporal order
    offset: the number of tokens seen so far
    """

    max_size: int
    keys: Optional[Tensor] = None
    values: Optional[Tensor] = None
    offset: int = 0

    def _trim(self, size: int, array: Tensor) -> Tensor:
        return array[:, :, max(array.shape[2] - size, 0) :]

    def update_and_fetch(self, keys: Tensor, values: Tensor) -> "RotatingKVCache":
        offset = self.offset + keys.shape[2]
        if self.keys is None:
            return RotatingKVCache(self.max_size, keys, values, offset)
        return self.update_concat(keys, values, offset)

    def update_concat(self, keys: Tensor, values: Tensor, offset: int) -> "RotatingKVCache":
        # before
        all_keys = torch.cat([self.keys, keys], dim=2)
        all_values = torch.cat([self.values, values], dim=2)
        all_keys = self._trim(self.max_size, all_keys)
        all_values = self._trim(self.max_size, all_values)
        # after
        all_keys = torch.cat([self._trim(self.max_size - 1, self.keys), keys], dim=2)
        all_values = torch.cat([self._trim(self.max_size - 1, self.values), values], dim=2)
        # end
        return RotatingKVCache(self.max_size, all_keys, all_values, offset)


def create_causal_mask(n: int, kv_len: int, offset: int, window_size: int, device) -> Tensor:
    """
    n: number of queries; the last is the token at `offset - 1`, like the last of the `kv_len` keys.
    A token sees itself and the `window_size - 1` tokens before it.
    """
    rinds = torch.arange(offset - kv_len, offset, device=device)
    linds = torch.arange(offset - n, offset, device=device)[:, None]
    return (linds >= rinds) & (linds < rinds + window_size)


class Attention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        n_heads: int,
        n_kv_heads: int,
        sliding_window: int = 512,
        rope_theta: float = 10_000.0,
    ):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = hidden_size // n_heads
        self.scale = self.head_dim**-0.5
        self.sliding_window = sliding_window
        self.rope_theta = rope_theta
        self.q_proj = nn.Linear(hidden_size, n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * self.head_dim, hidden_size, bias=False)

    def make_cache(self) -> RotatingKVCache:
        return RotatingKVCache(self.sliding_window)

    def rope(self, x: Tensor, offset: int) -> Tensor:
        half = self.head_dim // 2
        positions = torch.arange(offset, offset + x.shape[2], device=x.device)
        freqs = self.rope_theta ** -(torch.arange(half, device=x.device) / half)
        angles = torch.outer(positions, freqs)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)

    def forward(
        self, x: Tensor, cache: Optional[RotatingKVCache] = None
    ) -> tuple[Tensor, RotatingKVCache]:
        """x: (B, L, hidden_size). Returns the output and the cache with the tokens of x."""
        L = x.shape[1]
        cache = self.make_cache() if cache is None else cache
        queries = self.q_proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        keys = self.k_proj(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2)
        values = self.v_proj(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2)

        queries = self.rope(queries, cache.offset)
        keys = self.rope(keys, cache.offset)
        cache = cache.update_and_fetch(keys, values)

        groups = self.n_heads // self.n_kv_heads
        keys = cache.keys.repeat_interleave(groups, dim=1)
        values = cache.values.repeat_interleave(groups, dim=1)
        mask = create_causal_mask(L, keys.shape[2], cache.offset, self.sliding_window, x.device)
        scores = (queries @ keys.transpose(-1, -2)) * self.scale
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return self.o_proj((weights @ values).transpose(1, 2).flatten(2)), cache
