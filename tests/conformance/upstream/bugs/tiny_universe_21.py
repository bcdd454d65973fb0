"""The grouped attention of a small Qwen, as a course explains it."""

import math

import torch
from torch import nn


class Qwen2Config:
    def __init__(
        self,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_theta=10000,
        attention_dropout=0.0,
    ):
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.max_position_embeddings = max_position_embeddings
        self.rope_theta = rope_theta
        self.attention_dropout = attention_dropout


class Qwen2RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x, seq_len):
        t = torch.arange(seq_len, device=x.device).float()
        freqs = torch.outer(t, self.inv_freq.float())
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    """q, k: (batch, tokens, heads, head_dim)"""
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    """From (batch, num_key_value_heads, seqlen, head_dim) to (batch, num_attention_heads, seqlen, head_dim)"""
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :]
    hidden_states = hidden_states.expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


class Qwen2Attention(nn.Module):
    def __init__(self, config: Qwen2Config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_dim = config.hidden_size // self.num_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        kv_size = self.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=True)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=True)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=True)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.rotary_emb = Qwen2RotaryEmbedding(self.head_dim, config.rope_theta)

    def forward(self, hidden_states: torch.Tensor, attention_mask=None) -> torch.Tensor:
        """attention_mask: 1 at tokens and 0 at padding, of shape (batch, tokens)"""
        bsz, q_len, _ = hidden_states.size()
        query = self.q_proj(hidden_states).view(bsz, q_len, -1, self.head_dim)
        key = self.k_proj(hidden_states).view(bsz, q_len, -1, self.head_dim)
        value = self.v_proj(hidden_states).view(bsz, q_len, -1, self.head_dim)
        cos, sin = self.rotary_emb(value, seq_len=q_len)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)

        # (bs, head, seq_len, head_dim)
        query = query.transpose(1, 2)
        # before
        key = repeat_kv(key, self.num_key_value_groups).transpose(1, 2)
        value = repeat_kv(value, self.num_key_value_groups).transpose(1, 2)
        # after
        key = repeat_kv(key.transpose(1, 2), self.num_key_value_groups)
        value = repeat_kv(value.transpose(1, 2), self.num_key_value_groups)
        # end

        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.head_dim)
        causal = torch.ones(q_len, q_len, dtype=torch.bool, device=scores.device).tril()
        if attention_mask is not None:
            causal = causal & attention_mask.bool()[:, None, None, :]
        scores = scores.masked_fill(~causal, torch.finfo(scores.dtype).min)
        weights = self.dropout(nn.functional.softmax(scores, dim=-1))
        output = torch.matmul(weights, value).transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(output)
