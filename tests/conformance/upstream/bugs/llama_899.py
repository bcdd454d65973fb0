"""The attention of a language model, with a cache of fixed size."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim: int, n_heads: int, max_batch_size: int = 16, max_seq_len: int = 256):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        cache = torch.zeros(max_batch_size, max_seq_len, n_heads, self.head_dim)
        self.register_buffer("cache_k", cache, persistent=False)
        self.register_buffer("cache_v", cache.clone(), persistent=False)

    def make_mask(self, x: torch.Tensor, seqlen: int, start_pos: int):
        mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device)
        mask = torch.triu(mask, diagonal=1)
        # before
        return mask.to(x.dtype)
        # after
        # the tokens in the cache are visible to all new ones
        mask = torch.hstack([torch.zeros((seqlen, start_pos), device=x.device), mask])
        return mask.to(x.dtype)
        # end

    def forward(self, x: torch.Tensor, start_pos: int = 0):
        """
        Args:
            x (torch.Tensor): The new tokens.
            start_pos (int): The number of tokens in the cache.
        """
        bsz, seqlen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bsz, seqlen, self.n_heads, self.head_dim)
        xk = xk.view(bsz, seqlen, self.n_heads, self.head_dim)
        xv = xv.view(bsz, seqlen, self.n_heads, self.head_dim)

        keys = torch.cat((self.cache_k[:bsz, :start_pos], xk), dim=1)
        values = torch.cat((self.cache_v[:bsz, :start_pos], xv), dim=1)
        self.cache_k[:bsz, start_pos : start_pos + seqlen] = xk.detach()
        self.cache_v[:bsz, start_pos : start_pos + seqlen] = xv.detach()

        xq, keys, values = (t.transpose(1, 2) for t in (xq, keys, values))
        scores = torch.matmul(xq, keys.transpose(2, 3)) / math.sqrt(self.head_dim)
        if seqlen > 1:
            scores = scores + self.make_mask(x, seqlen, start_pos)
        scores = F.softmax(scores, dim=-1)
        output = torch.matmul(scores, values)
        output = output.transpose(1, 2).contiguous().view(bsz, seqlen, -1)
        return self.wo(output)
