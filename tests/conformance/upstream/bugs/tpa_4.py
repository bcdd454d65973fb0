"""Multi-head latent attention in a small language model."""

import torch
import torch.nn.functional as F
from torch import nn


class Rotary(nn.Module):
    """Rotate queries or keys of shape (batch, length, heads, dim) by their positions."""

    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, x):
        t = torch.arange(x.shape[1], device=x.device).float()
        freqs = torch.outer(t, self.inv_freq.float())
        cos, sin = freqs.cos()[None, :, None, :], freqs.sin()[None, :, None, :]
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).type_as(x)


class MLA(nn.Module):
    def __init__(self, n_embd, n_head, kv_lora_rank=16, rope_dim=4):
        super().__init__()
        self.n_head = n_head
        self.head_dim = n_embd // n_head
        self.rope_dim = rope_dim
        self.c_q = nn.Linear(n_embd, n_head * (self.head_dim + rope_dim), bias=False)
        self.compress_kv = nn.Linear(n_embd, kv_lora_rank, bias=False)
        self.c_k = nn.Linear(kv_lora_rank, n_embd, bias=False)
        self.c_v = nn.Linear(kv_lora_rank, n_embd, bias=False)
        self.k_rope = nn.Linear(n_embd, rope_dim, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.rotary = Rotary(rope_dim)

    def forward(self, x):
        B, T, C = x.size()
        q = self.c_q(x).view(B, T, self.n_head, -1)
        q, q_rope = q.split([self.head_dim, self.rope_dim], dim=-1)
        kv = self.compress_kv(x)
        k = self.c_k(kv).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        v = self.c_v(kv).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        k_rope = self.k_rope(x).view(B, T, 1, self.rope_dim)

        # before
        q, q_rope, k_rope = q.transpose(1, 2), q_rope.transpose(1, 2), k_rope.transpose(1, 2)
        q_rope, k_rope = self.rotary(q_rope), self.rotary(k_rope)
        # after
        q_rope, k_rope = self.rotary(q_rope), self.rotary(k_rope)
        q, q_rope, k_rope = q.transpose(1, 2), q_rope.transpose(1, 2), k_rope.transpose(1, 2)
        # end

        q = torch.cat((q, q_rope), dim=-1)
        k = torch.cat((k, k_rope.expand(-1, self.n_head, -1, -1)), dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))
