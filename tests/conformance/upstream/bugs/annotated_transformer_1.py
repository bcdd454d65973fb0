"""Multi-head attention of a translation model, written with a layer for each projection."""

import math

import torch
from torch import nn


def attention(query, key, value, mask=None, dropout=None):
    """Compute scaled dot product attention; nothing is read where the mask is 0."""
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        """Take in the number of heads and the size of the model."""
        super().__init__()
        assert d_model % h == 0
        # we assume that d_v always equals d_k
        self.d_k = d_model // h
        self.h = h
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.o_proj = nn.Linear(d_model, d_model)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            # the same mask applies to all heads
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)

        # 1) project: d_model => h x d_k
        query = self.q_proj(query).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        key = self.k_proj(key).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        # before
        value = self.k_proj(value).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        # after
        value = self.v_proj(value).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
        # end

        # 2) attend with all heads at once
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)

        # 3) put the heads side by side, and project
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.o_proj(x)
