"""The diffusion transformer that turns codes of speech into spectrograms."""

from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class DiTConfig:
    hidden_size: int = 32
    num_hidden_layers: int = 1
    num_attention_heads: int = 4
    head_dim: int = 8
    ff_mult: int = 2
    rope_theta: float = 10000.0


class DiTRotaryEmbedding(nn.Module):
    def __init__(self, config: DiTConfig):
        super().__init__()
        exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
        self.register_buffer("inv_freq", config.rope_theta**-exponents, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        freqs = position_ids[:, :, None].float() * self.inv_freq.float()
        # before
        emb = torch.cat((freqs, freqs), dim=-1)
        # after
        emb = torch.stack((freqs, freqs), dim=-1).flatten(-2)
        # end
        return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)


def rotate_half_codec(x):
    """Rotates the pairs of neighbouring channels."""
    x = x.reshape(*x.shape[:-1], -1, 2)
    x1, x2 = x.unbind(dim=-1)
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    q_embed = (q * cos) + (rotate_half_codec(q) * sin)
    k_embed = (k * cos) + (rotate_half_codec(k) * sin)
    return q_embed, k_embed


class DiTAttention(nn.Module):
    def __init__(self, config: DiTConfig):
        super().__init__()
        self.heads = config.num_attention_heads
        inner_dim = config.head_dim * config.num_attention_heads
        self.to_q = nn.Linear(config.hidden_size, inner_dim)
        self.to_k = nn.Linear(config.hidden_size, inner_dim)
        self.to_v = nn.Linear(config.hidden_size, inner_dim)
        self.to_out = nn.Linear(inner_dim, config.hidden_size)

    def forward(self, hidden_states, position_embeddings, attention_mask=None):
        batch_size, seq_len, _ = hidden_states.shape
        query, key, value = (
            proj(hidden_states).view(batch_size, seq_len, self.heads, -1).transpose(1, 2)
            for proj in (self.to_q, self.to_k, self.to_v)
        )
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        return self.to_out(out.transpose(1, 2).reshape(batch_size, seq_len, -1))


class DiTDecoderLayer(nn.Module):
    def __init__(self, config: DiTConfig):
        super().__init__()
        self.attn_norm = nn.LayerNorm(config.hidden_size)
        self.attn = DiTAttention(config)
        self.ff_norm = nn.LayerNorm(config.hidden_size)
        self.ff = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size * config.ff_mult),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.hidden_size * config.ff_mult, config.hidden_size),
        )

    def forward(self, hidden_states, position_embeddings):
        hidden_states = hidden_states + self.attn(
            self.attn_norm(hidden_states), position_embeddings
        )
        return hidden_states + self.ff(self.ff_norm(hidden_states))


class Token2WavDiTModel(nn.Module):
    def __init__(self, config: Optional[DiTConfig] = None):
        super().__init__()
        config = config or DiTConfig()
        self.rotary_embed = DiTRotaryEmbedding(config)
        self.transformer_blocks = nn.ModuleList(
            [DiTDecoderLayer(config) for _ in range(config.num_hidden_layers)]
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """hidden_states: noisy frames with their conditions, (batch, frames, hidden_size)"""
        position_ids = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]
        position_embeddings = self.rotary_embed(hidden_states, position_ids)
        for block in self.transformer_blocks:
            hidden_states = block(hidden_states, position_embeddings)
        return hidden_states
