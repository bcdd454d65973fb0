"""The attention of a Llama that keeps its keys and values in buffers."""

import torch
import torch.nn.functional as F
from torch import nn


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
    freqs = torch.outer(torch.arange(end).float(), freqs)
    return torch.cos(freqs), torch.sin(freqs)


def apply_rotary_emb(x: torch.Tensor, freqs_cos: torch.Tensor, freqs_sin: torch.Tensor):
    x_r, x_i = x.reshape((*x.shape[:-1], -1, 2)).unbind(-1)
    freqs_cos, freqs_sin = freqs_cos[:, None], freqs_sin[:, None]
    x_out_r = x_r * freqs_cos - x_i * freqs_sin
    x_out_i = x_r * freqs_sin + x_i * freqs_cos
    return torch.stack([x_out_r, x_out_i], dim=-1).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, dim: int, n_heads: int, max_batch_size: int = 8, max_seq_len: int = 64):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        freqs_cos, freqs_sin = precompute_freqs_cis(self.head_dim, max_seq_len)
        self.register_buffer("freqs_cos", freqs_cos, persistent=False)
        self.register_buffer("freqs_sin", freqs_sin, persistent=False)
        shape = (max_batch_size, max_seq_len, n_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)
        mask = torch.full((max_seq_len, max_seq_len), float("-inf")).triu(diagonal=1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: torch.Tensor, start_pos: int):
        bsz, seqlen, _ = x.shape
        q = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        k = self.wk(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        v = self.wv(x).view(bsz, seqlen, self.n_heads, self.head_dim)
        # before
        freqs_cos = self.freqs_cos[:seqlen]
        freqs_sin = self.freqs_sin[:seqlen]
        # after
        freqs_cos = self.freqs_cos[start_pos : start_pos + seqlen]
        freqs_sin = self.freqs_sin[start_pos : start_pos + seqlen]
        # end
        q = apply_rotary_emb(q, freqs_cos, freqs_sin)
        k = apply_rotary_emb(k, freqs_cos, freqs_sin)
        self.cache_k[:bsz, start_pos : start_pos + seqlen] = k.detach()
        self.cache_v[:bsz, start_pos : start_pos + seqlen] = v.detach()
        keys = torch.cat([self.cache_k[:bsz, :start_pos], k], dim=1).transpose(1, 2)
        values = torch.cat([self.cache_v[:bsz, :start_pos], v], dim=1).transpose(1, 2)
        scores = q.transpose(1, 2) @ keys.transpose(2, 3) * self.head_dim**-0.5
        scores = scores + self.mask[start_pos : start_pos + seqlen, : start_pos + seqlen]
        scores = (
            F.softmax(scores.float(), dim=-1).type_as(q) if q.is_cuda else F.softmax(scores, -1)
        )
        output = (scores @ values).transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)
