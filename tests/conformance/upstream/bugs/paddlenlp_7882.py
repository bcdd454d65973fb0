"""Attention with rotary embeddings from a table, on queries and keys with the length before the heads."""

import torch
import torch.nn.functional as F
from torch import nn


class LlamaRotaryEmbedding(nn.Module):
    def __init__(self, dim, max_position_embeddings=512, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        freqs = torch.outer(torch.arange(max_position_embeddings).float(), inv_freq)
        emb = torch.cat([freqs, freqs], dim=-1)
        # [1, max_position_embeddings, 1, dim]
        self.register_buffer("cos_cached", emb.cos()[None, :, None, :], persistent=False)
        self.register_buffer("sin_cached", emb.sin()[None, :, None, :], persistent=False)

    def forward(self, x, seq_len):
        # before
        return (
            self.cos_cached[:, :, :seq_len, ...].to(x.dtype),
            self.sin_cached[:, :, :seq_len, ...].to(x.dtype),
        )
        # after
        return (
            self.cos_cached[:, :seq_len, :, ...].to(x.dtype),
            self.sin_cached[:, :seq_len, :, ...].to(x.dtype),
        )
        # end


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([-x2, x1], dim=-1)


class LlamaAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, max_position_embeddings=512):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(self.head_dim, max_position_embeddings)

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.shape
        shape = (bsz, q_len, self.num_heads, self.head_dim)
        query_states = self.q_proj(hidden_states).reshape(shape)
        key_states = self.k_proj(hidden_states).reshape(shape)
        value_states = self.v_proj(hidden_states).reshape(shape)

        cos, sin = self.rotary_emb(value_states, seq_len=q_len)
        query_states = query_states * cos + rotate_half(query_states) * sin
        key_states = key_states * cos + rotate_half(key_states) * sin

        q, k, v = (t.transpose(1, 2) for t in (query_states, key_states, value_states))
        attn_output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(attn_output.transpose(1, 2).reshape(bsz, q_len, -1))
