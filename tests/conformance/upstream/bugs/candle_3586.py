"""Qwen3: a decoder with grouped queries, normalised queries and keys, and a cache in every layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Qwen3RotaryEmbedding(nn.Module):
    def __init__(self, head_dim: int, max_position_embeddings: int, rope_theta: float):
        super().__init__()
        steps = torch.arange(0, head_dim, 2).float() / head_dim
        freqs = torch.outer(torch.arange(max_position_embeddings).float(), rope_theta**-steps)
        self.register_buffer("sin", freqs.sin(), persistent=False)
        self.register_buffer("cos", freqs.cos(), persistent=False)

    def apply_rope(self, x: Tensor, offset: int) -> Tensor:
        """Rotate queries or keys of shape (b, h, l, d)."""
        cos, sin = (t[offset : offset + x.shape[2]].to(x.dtype) for t in (self.cos, self.sin))
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)


class Qwen3MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Qwen3Attention(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads, head_dim, eps, rotary_emb):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(head_dim, eps=eps)
        self.k_norm = nn.RMSNorm(head_dim, eps=eps)
        self.rotary_emb = rotary_emb
        self.kv_cache = None

    def forward(self, x: Tensor, attn_mask: Tensor | None, offset: int) -> Tensor:
        b, l, _ = x.shape
        q = self.q_norm(self.q_proj(x).reshape(b, l, self.num_heads, self.head_dim))
        k = self.k_norm(self.k_proj(x).reshape(b, l, self.num_kv_heads, self.head_dim))
        v = self.v_proj(x).reshape(b, l, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q = self.rotary_emb.apply_rope(q.transpose(1, 2), offset)
        k = self.rotary_emb.apply_rope(k.transpose(1, 2), offset)

        if offset > 0:
            k = torch.cat([self.kv_cache[0], k], dim=2)
            v = torch.cat([self.kv_cache[1], v], dim=2)
        self.kv_cache = (k, v)

        groups = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = q @ k.transpose(2, 3) / self.head_dim**0.5
        if attn_mask is not None:
            scores = scores + attn_mask
        ctx = scores.softmax(dim=-1) @ v
        return self.o_proj(ctx.transpose(1, 2).reshape(b, l, -1))


class DecoderLayer(nn.Module):
    def __init__(self, self_attn: Qwen3Attention, mlp: Qwen3MLP, hidden_size: int, eps: float):
        super().__init__()
        self.self_attn, self.mlp = self_attn, mlp
        self.ln1 = nn.RMSNorm(hidden_size, eps=eps)
        self.ln2 = nn.RMSNorm(hidden_size, eps=eps)

    def forward(self, x: Tensor, mask: Tensor | None, offset: int) -> Tensor:
        x = x + self.self_attn(self.ln1(x), mask, offset)
        return x + self.mlp(self.ln2(x))


class Model(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        head_dim: int,
        max_position_embeddings: int = 4096,
        rope_theta: float = 10000.0,
        rms_norm_eps: float = 1e-6,
    ):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        rotary = Qwen3RotaryEmbedding(head_dim, max_position_embeddings, rope_theta)
        sizes = (hidden_size, num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps)
        self.layers = nn.ModuleList()
        for _ in range(num_hidden_layers):
            attn = Qwen3Attention(*sizes, rotary)
            mlp = Qwen3MLP(hidden_size, intermediate_size)
            self.layers.append(DecoderLayer(attn, mlp, hidden_size, rms_norm_eps))
        self.norm = nn.RMSNorm(hidden_size, eps=rms_norm_eps)

    def causal_mask(self, b: int, tgt: int, offset: int, like: Tensor) -> Tensor:
        minf = float("-inf")
        mask = [0.0 if j <= i + offset else minf for i in range(tgt) for j in range(tgt + offset)]
        # before
        storage = like.new_zeros(b * tgt * (tgt + offset))
        storage[: len(mask)] = like.new_tensor(mask)
        return storage.view(b, 1, tgt, tgt + offset)
        # after
        return like.new_tensor(mask).view(1, 1, tgt, tgt + offset)
        # end

    def forward(self, input: Tensor, offset: int = 0) -> Tensor:
        """input: (b, l), the tokens from position `offset` on; at offset 0 the cache starts anew."""
        b, l = input.shape
        h = self.embed_tokens(input)
        causal = None if l == 1 else self.causal_mask(b, l, offset, h)
        for layer in self.layers:
            h = layer(h, causal, offset)
        return self.norm(h)
