"""Attention over (length, batch, width) with a mask of padding and a causal one."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.1):
        super().__init__()
        self.embed_dim, self.num_heads, self.p = embed_dim, num_heads, dropout
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor, key_padding_mask: Optional[Tensor] = None) -> Tensor:
        """
        Args:
            x: (length, batch, embed_dim)
            key_padding_mask: (batch, length), True at padding
        """
        tgt_len, bsz, _ = x.size()
        q, k, v = self.in_proj(x).chunk(3, dim=-1)
        q = q * self.scaling
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        weights = torch.bmm(q, k.transpose(1, 2))
        future = torch.ones(tgt_len, tgt_len, device=x.device, dtype=torch.bool).triu(1)
        weights = weights.masked_fill(future, torch.finfo(weights.dtype).min)
        if key_padding_mask is not None:
            weights = weights.view(bsz, self.num_heads, tgt_len, tgt_len)
            hidden = key_padding_mask[:, None, None, :]
            weights = weights.masked_fill(hidden, torch.finfo(weights.dtype).min)
            weights = weights.view(bsz * self.num_heads, tgt_len, tgt_len)
        weights = F.softmax(weights, dim=-1)
        weights = F.dropout(weights, p=self.p, training=self.training)
        attn = torch.bmm(weights, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, self.embed_dim)
        return self.out_proj(attn)
