"""The attention of a forecaster, which keeps the keys and values of the context between its steps."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class LTSMConfig:
    block_size: int = 32
    n_head: int = 4
    n_embd_per_head: int = 8
    dropout: float = 0.0


class CausalSelfAttention(nn.Module):
    def __init__(self, config: LTSMConfig) -> None:
        super().__init__()
        n_embd = config.n_embd_per_head * config.n_head
        # query projections for all heads, but in a batch
        self.q_proj = nn.Linear(n_embd, n_embd, bias=False)
        # key, value projections
        self.kv_proj = nn.Linear(n_embd, 2 * n_embd, bias=False)
        # output projection
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.n_head = config.n_head
        self.n_embd_per_head = config.n_embd_per_head
        self.dropout = config.dropout
        self.kv_cache = None

    def reset_cache(self) -> None:
        self.kv_cache = None

    def forward(self, x: torch.Tensor, use_kv_cache: bool) -> torch.Tensor:
        # sequence length is 1 when using kv_cache and kv_cache has been initialised
        (B, T, C) = x.size()
        q = self.q_proj(x)
        k, v = self.kv_proj(x).split(self.n_embd_per_head * self.n_head, dim=2)

        cache_initialized = self.kv_cache is not None
        if use_kv_cache:
            if cache_initialized:
                k = torch.cat([self.kv_cache[0], k], dim=1)
                v = torch.cat([self.kv_cache[1], v], dim=1)
            self.kv_cache = k, v

        k = k.view(B, -1, self.n_head, self.n_embd_per_head).transpose(1, 2)  # (B, nh, T, hs)
        q = q.view(B, -1, self.n_head, self.n_embd_per_head).transpose(1, 2)  # (B, nh, T, hs)
        v = v.view(B, -1, self.n_head, self.n_embd_per_head).transpose(1, 2)  # (B, nh, T, hs)

        # before
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        # after
        if use_kv_cache and cache_initialized:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=False)
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        # end

        # re-assemble all head outputs side by side
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
