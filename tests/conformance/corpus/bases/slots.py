"""A cache of fixed size is an argument and part of the result; unused slots are masked."""

import torch
from torch import nn


class CachedAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_seq_len=32):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.max_seq_len = max_seq_len
        self.wqkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)
        lower = torch.tril(torch.ones(max_seq_len, max_seq_len, dtype=torch.bool))
        self.register_buffer("causal_mask", lower, persistent=False)

    def forward(self, x, k_cache=None, v_cache=None, start_pos=0):
        bsz, seqlen, dim = x.shape
        q, k, v = self.wqkv(x).split(dim, dim=-1)
        q = q.view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        k = k.view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        v = v.view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)
        if k_cache is None:
            k_cache = k.new_zeros(bsz, self.n_heads, self.max_seq_len, self.head_dim)
            v_cache = v.new_zeros(bsz, self.n_heads, self.max_seq_len, self.head_dim)
        end = start_pos + seqlen
        k_cache = torch.cat([k_cache[:, :, :start_pos], k, k_cache[:, :, end:]], dim=2)
        v_cache = torch.cat([v_cache[:, :, :start_pos], v, v_cache[:, :, end:]], dim=2)
        mask = self.causal_mask[start_pos:end]
        scores = q @ k_cache.transpose(-2, -1) / self.head_dim**0.5
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
        attn = scores.softmax(-1)
        y = attn @ v_cache
        y = y.transpose(1, 2).contiguous().view(bsz, seqlen, dim)
        return self.wo(y), k_cache, v_cache
