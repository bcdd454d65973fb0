"""Scaled dot-product attention with a causal mask that is made once, for the longest sequence."""

import math
from typing import Optional

import torch
from torch import nn


class ScaledDotProduct(nn.Module):
    def __init__(self, dropout: float = 0.0, causal: bool = True, seq_len: Optional[int] = 48):
        super().__init__()
        self.attn_drop = nn.Dropout(dropout, inplace=False)
        self.causal = causal
        mask = torch.ones(seq_len, seq_len).tril().bool() if causal else None
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        """Attend from q to k and v, each of shape (batch, length, head size)."""
        att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        if self.mask is not None:
            # before
            mask = self.mask
            # after
            mask = self.mask[: q.shape[-2], : k.shape[-2]]
            # end
            att = att.masked_fill(~mask, float("-inf"))
        att = torch.softmax(att, dim=-1)
        att = self.attn_drop(att)
        return att @ v
