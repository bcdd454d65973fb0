"""A block of a language model, with norms of the queries and keys."""

from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class ModelConfig:
    d_model: int = 32
    n_heads: int = 4
    n_kv_heads: Optional[int] = None
    attention_layer_norm: bool = True

    @property
    def effective_n_kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads


class LayerNorm(nn.Module):
    def __init__(self, config: ModelConfig, size: Optional[int] = None, eps: float = 1e-5):
        super().__init__()
        self.normalized_shape = (size or config.d_model,)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(self.normalized_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.normalized_shape, weight=self.weight, eps=self.eps)


class OLMoSequentialBlock(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        head_dim = config.d_model // config.n_heads
        self.k_norm: Optional[LayerNorm] = None
        self.q_norm: Optional[LayerNorm] = None
        if config.attention_layer_norm:
            # before
            self.k_norm = LayerNorm(config, size=config.d_model // config.effective_n_kv_heads)
            # after
            self.k_norm = LayerNorm(config, size=head_dim * config.effective_n_kv_heads)
            # end
            self.q_norm = LayerNorm(config)
        self.fused_dims = (
            config.d_model,
            config.effective_n_kv_heads * head_dim,
            config.effective_n_kv_heads * head_dim,
        )
        self.attn_norm = LayerNorm(config)
        self.att_proj = nn.Linear(config.d_model, sum(self.fused_dims), bias=False)
        self.attn_out = nn.Linear(config.d_model, config.d_model, bias=False)

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        B, T, C = q.size()
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q = q.view(B, T, self.config.n_heads, -1).transpose(1, 2)
        k = k.view(B, T, self.config.effective_n_kv_heads, -1).transpose(1, 2)
        v = v.view(B, T, self.config.effective_n_kv_heads, -1).transpose(1, 2)
        groups = self.config.n_heads // self.config.effective_n_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        att = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        return self.attn_out(att.transpose(1, 2).contiguous().view(B, T, C))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, tokens, d_model). No token sees a later one."""
        q, k, v = self.att_proj(self.attn_norm(x)).split(self.fused_dims, dim=-1)
        return x + self.attention(q, k, v)
