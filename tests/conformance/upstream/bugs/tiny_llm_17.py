"""The attention of a small language model, whose generation fills a cache with the prompt first."""

from typing import Optional

import torch
from torch import nn


class KVCache:
    """The keys and values of the tokens that were seen, of shape (batch, heads, tokens, head_dim)."""

    def __init__(self):
        self.k = None
        self.v = None

    def update(self, k: torch.Tensor, v: torch.Tensor):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        return self.k, self.v


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, max_seq_len: int = 64):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        mask = torch.triu(torch.ones(max_seq_len, max_seq_len, dtype=torch.bool), diagonal=1)
        self.register_buffer("causal_mask", mask, persistent=False)

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        B, T, _ = x.shape
        return x.view(B, T, self.n_heads, self.d_head).transpose(1, 2)

    def forward(self, x: torch.Tensor, cache: Optional[KVCache] = None) -> torch.Tensor:
        B, T_new, D = x.shape
        q = self.split_heads(self.W_q(x))
        k = self.split_heads(self.W_k(x))
        v = self.split_heads(self.W_v(x))
        if cache is not None:
            k, v = cache.update(k, v)
        T_total = k.shape[2]

        scores = q @ k.transpose(-2, -1) / self.d_head**0.5
        # before
        if cache is None:
            scores = scores.masked_fill(self.causal_mask[:T_new, :T_new], float("-inf"))
        # after
        causal_mask = self.causal_mask[T_total - T_new : T_total, :T_total]
        scores = scores.masked_fill(causal_mask, float("-inf"))
        # end

        attn = torch.softmax(scores, dim=-1)
        out = (attn @ v).transpose(1, 2).contiguous().view(B, T_new, D)
        return self.W_o(out)
