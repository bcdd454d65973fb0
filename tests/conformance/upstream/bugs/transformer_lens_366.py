"""The attention of a model for interpretability, with weights for each head."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, n_heads, d_head, n_ctx=64):
        super().__init__()
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, d_head) * d_model**-0.5)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, d_head) * d_model**-0.5)
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, d_head) * d_model**-0.5)
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) * d_head**-0.5)
        self.b_O = nn.Parameter(torch.zeros(d_model))
        self.attn_scale = d_head**0.5
        causal_mask = torch.tril(torch.ones((n_ctx, n_ctx)).bool())
        self.register_buffer("mask", causal_mask)
        # before
        self.register_buffer("IGNORE", torch.tensor(-1e5))
        # after
        self.register_buffer("IGNORE", torch.tensor(-torch.inf))
        # end

    def forward(self, resid_pre):
        q = torch.einsum("bpm,hmd->bphd", resid_pre, self.W_Q)
        k = torch.einsum("bpm,hmd->bphd", resid_pre, self.W_K)
        v = torch.einsum("bpm,hmd->bphd", resid_pre, self.W_V)
        attn_scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.attn_scale
        attn_scores = self.apply_causal_mask(attn_scores)
        pattern = torch.softmax(attn_scores, dim=-1)
        z = torch.einsum("bkhd,bhqk->bqhd", v, pattern)
        return torch.einsum("bqhd,hdm->bqm", z, self.W_O) + self.b_O

    def apply_causal_mask(self, attn_scores):
        n = attn_scores.size(-1)
        return torch.where(self.mask[:n, :n], attn_scores, self.IGNORE)
