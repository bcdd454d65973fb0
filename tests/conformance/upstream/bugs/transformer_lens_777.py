"""Attention with linear biases and a cache, with weights of shape (heads, d_model, d_head)."""

from typing import Optional

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_head: int):
        super().__init__()
        self.n_heads = n_heads
        self.attn_scale = d_head**0.5
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, d_head) * 0.1)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, d_head) * 0.1)
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, d_head) * 0.1)
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) * 0.1)
        slopes = torch.tensor([2 ** (-8 * (h + 1) / n_heads) for h in range(n_heads)])
        self.register_buffer("slopes", slopes)

    def create_alibi_bias(self, n_ctx: int) -> torch.Tensor:
        """Return the biases of all pairs of tokens, of shape (heads, n_ctx, n_ctx)."""
        positions = torch.arange(n_ctx, device=self.slopes.device)
        distances = (positions - positions[:, None]).clamp(max=0)
        return self.slopes[:, None, None] * distances

    def forward(self, x: torch.Tensor, past_kv: Optional[tuple[torch.Tensor, torch.Tensor]] = None):
        """x: [batch pos d_model]. past_kv: the keys and values of the tokens before x."""
        q = torch.einsum("bpm,hmd->bphd", x, self.W_Q)
        k = torch.einsum("bpm,hmd->bphd", x, self.W_K)
        v = torch.einsum("bpm,hmd->bphd", x, self.W_V)
        if past_kv is not None:
            k = torch.cat([past_kv[0], k], dim=1)
            v = torch.cat([past_kv[1], v], dim=1)
        query_ctx, key_ctx = q.size(1), k.size(1)

        attn_scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.attn_scale
        alibi = self.create_alibi_bias(key_ctx)
        # before
        attn_scores = attn_scores + alibi[:, :query_ctx, :key_ctx]
        # after
        attn_scores = attn_scores + alibi[:, key_ctx - query_ctx :, :key_ctx]
        # end

        visible = torch.ones(query_ctx, key_ctx, dtype=torch.bool, device=x.device)
        visible = visible.tril(key_ctx - query_ctx)
        pattern = attn_scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        z = torch.einsum("bkhd,bhqk->bqhd", v, pattern)
        return torch.einsum("bqhd,hdm->bqm", z, self.W_O), (k, v)
