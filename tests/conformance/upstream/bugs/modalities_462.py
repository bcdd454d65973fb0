"""Causal attention with grouped heads and rotary tables that are kept while the length is the same."""

import torch
import torch.nn.functional as F
from torch import nn


class RotaryTransform(nn.Module):
    def __init__(self, n_embd: int, n_head: int, base_freq: int = 10000):
        super().__init__()
        dim_model = n_embd // n_head
        inv_freq = 1.0 / (base_freq ** (torch.arange(0, dim_model, 2).float() / dim_model))
        self.register_buffer("inv_freq", inv_freq)

    def rotate_half(self, x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    def cos_sin_tables(self, x):
        t = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
        # before
        freqs = torch.einsum("i,j->ij", t.to(x.dtype), self.inv_freq.to(x.dtype))
        # after
        freqs = torch.einsum("i,j->ij", t, self.inv_freq.float())
        # end
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos()[None, None, :, :].to(x.dtype), emb.sin()[None, None, :, :].to(x.dtype)

    def forward(self, q, k):
        cos, sin = self.cos_sin_tables(k)
        q = (q * cos) + (self.rotate_half(q) * sin)
        k = (k * cos) + (self.rotate_half(k) * sin)
        return q, k


class CausalSelfAttention(nn.Module):
    def __init__(self, n_head_q: int, n_head_kv: int, n_embd: int, bias: bool = False):
        super().__init__()
        assert n_embd % n_head_q == 0, "`n_embd` must be divisible by `n_head_q`"
        assert n_head_q % n_head_kv == 0, "`n_head_q` must be divisible by `n_head_kv`"
        self.n_rep = n_head_q // n_head_kv
        self.n_head_q = n_head_q
        self.n_head_kv = n_head_kv
        self.q_attn = nn.Linear(n_embd, n_embd, bias=bias)
        self.k_attn = nn.Linear(n_embd, n_embd // self.n_rep, bias=bias)
        self.v_attn = nn.Linear(n_embd, n_embd // self.n_rep, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.qkv_transform = RotaryTransform(n_embd, n_head_q)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        q = self.q_attn(x).view(B, T, self.n_head_q, -1).transpose(1, 2)
        k = self.k_attn(x).view(B, T, self.n_head_kv, -1).transpose(1, 2)
        v = self.v_attn(x).view(B, T, self.n_head_kv, -1).transpose(1, 2)
        q, k = self.qkv_transform(q, k)
        k = k.repeat_interleave(self.n_rep, dim=1)
        v = v.repeat_interleave(self.n_rep, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
