"""The attention of a small language model, with rotary embeddings from a library."""

import torch
import torch.nn.functional as F
from torch import nn


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys of shape (batch, heads, tokens, dim) or (batch, tokens, dim)."""

    def __init__(self, dim_model: int):
        super().__init__()
        inv_freq = 1.0 / (10000 ** (torch.arange(0, dim_model, 2).float() / dim_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, q: torch.Tensor, k: torch.Tensor):
        t = torch.arange(k.shape[-2], device=k.device, dtype=torch.float32)
        freqs = torch.outer(t, self.inv_freq.float())
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos(), emb.sin()
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class RotaryWithCast(RotaryEmbedding):
    def forward(self, q, k, v):
        # before
        q, k = super().forward(q, k)
        # after
        q, k = super().forward(q.transpose(1, 2), k.transpose(1, 2))
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        # end
        return q.to(v.dtype), k.to(v.dtype), v


def torch_attn(queries, keys, values, is_causal):
    """Attend with queries, keys and values of shape (batch, tokens, heads, dim)."""
    return F.scaled_dot_product_attention(
        queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=is_causal
    ).transpose(1, 2)


class CustomAttn(nn.Module):
    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.in_proj = nn.Linear(dim, 3 * n_heads * self.head_dim, bias=False)
        self.out_proj = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        self.pos_embed = RotaryWithCast(self.head_dim)
        self.attn_fn = torch_attn

    def forward(self, x: torch.Tensor, is_causal=True):
        batchsize, seqlen, _ = x.shape
        queries, keys, vals = self.in_proj(x).chunk(3, dim=-1)
        queries = queries.view(batchsize, seqlen, self.n_heads, self.head_dim)
        keys = keys.view(batchsize, seqlen, self.n_heads, self.head_dim)
        vals = vals.view(batchsize, seqlen, self.n_heads, self.head_dim)

        queries, keys, vals = self.pos_embed(queries, keys, vals)
        output = self.attn_fn(queries, keys, vals, is_causal=is_causal)
        return self.out_proj(output.reshape(batchsize, seqlen, -1))
