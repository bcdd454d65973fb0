"""Gemma 3n: the upper layers share the keys and values of a layer below them."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn


@dataclass
class TextConfig:
    hidden_size: int = 32
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 8
    num_kv_shared_layers: int = 1
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0


class KVCache:
    def __init__(self):
        self.keys = None
        self.values = None
        self.offset = 0

    def update_and_fetch(self, keys, values):
        if self.keys is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        self.offset = keys.shape[2]
        return keys, values

    @property
    def state(self):
        return self.keys, self.values


class RoPE(nn.Module):
    def __init__(self, dims: int, base: float):
        super().__init__()
        self.dims = dims
        self.base = base

    def forward(self, x: torch.Tensor, offset: int = 0) -> torch.Tensor:
        half = self.dims // 2
        freqs = self.base ** (-torch.arange(half, device=x.device) / half)
        positions = torch.arange(offset, offset + x.shape[-2], device=x.device)
        angles = torch.outer(positions.float(), freqs)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)


class Attention(nn.Module):
    def __init__(self, config: TextConfig, is_kv_shared_layer: bool = False):
        super().__init__()
        dim = config.hidden_size
        self.n_heads = config.num_attention_heads
        self.n_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.scale = self.head_dim**-0.5
        self.is_kv_shared_layer = is_kv_shared_layer

        self.q_proj = nn.Linear(dim, self.n_heads * self.head_dim, bias=False)
        if not is_kv_shared_layer:
            self.k_proj = nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False)
            self.v_proj = nn.Linear(dim, self.n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.n_heads * self.head_dim, dim, bias=False)
        self.rope = RoPE(self.head_dim, config.rope_theta)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, cache: KVCache) -> torch.Tensor:
        B, L, _ = x.shape
        queries = self.q_proj(x).view(B, L, self.n_heads, self.head_dim).transpose(1, 2)

        if self.is_kv_shared_layer:
            # the layer that the keys and values come from has filled the cache in this pass
            keys, values = cache.state
            # before
            offset = cache.offset
            # after
            offset = cache.offset - L
            # end
        else:
            offset = cache.offset
            keys = self.k_proj(x).view(B, L, self.n_kv_heads, self.head_dim).transpose(1, 2)
            values = self.v_proj(x).view(B, L, self.n_kv_heads, self.head_dim).transpose(1, 2)
            keys = self.rope(keys, offset=offset)
            keys, values = cache.update_and_fetch(keys, values)

        queries = self.rope(queries, offset=offset)
        repeats = self.n_heads // self.n_kv_heads
        keys = keys.repeat_interleave(repeats, dim=1)
        values = values.repeat_interleave(repeats, dim=1)
        scores = (queries @ keys.transpose(-1, -2)) * self.scale
        scores = scores.masked_fill(~mask, float("-inf"))
        output = scores.softmax(dim=-1) @ values
        return self.o_proj(output.transpose(1, 2).reshape(B, L, -1))


class DecoderLayer(nn.Module):
    def __init__(self, config: TextConfig, is_kv_shared_layer: bool):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, is_kv_shared_layer)

    def forward(self, x, mask, cache):
        return x + self.self_attn(self.input_layernorm(x), mask, cache)


class LanguageModel(nn.Module):
    """The stack of layers. Takes embedded tokens, and the caches of `make_cache` when it continues a text."""

    def __init__(self, config: Optional[TextConfig] = None):
        super().__init__()
        config = config or TextConfig()
        self.first_kv_shared_layer_idx = config.num_hidden_layers - config.num_kv_shared_layers
        self.layers = nn.ModuleList(
            DecoderLayer(config, i >= self.first_kv_shared_layer_idx)
            for i in range(config.num_hidden_layers)
        )

    def make_cache(self):
        return [KVCache() for _ in range(self.first_kv_shared_layer_idx)]

    def forward(self, h: torch.Tensor, cache=None) -> torch.Tensor:
        if cache is None:
            cache = self.make_cache()
        L, offset = h.shape[1], cache[0].offset
        rows = torch.arange(offset, offset + L, device=h.device)
        mask = rows[:, None] >= torch.arange(offset + L, device=h.device)
        for i, layer in enumerate(self.layers):
            h = layer(h, mask, cache[min(i, self.first_kv_shared_layer_idx - 1)])
        return h
