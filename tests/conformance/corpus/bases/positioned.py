"""A learned position, counted from the first real token, is added to the inputs of queries and keys."""

import torch
from torch import nn


class PositionedAttention(nn.Module):
    def __init__(self, d_model, n_heads, max_len=96, dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.wpe = nn.Embedding(max_len, d_model)
        self.wq = nn.Linear(d_model, d_model)
        self.wk = nn.Linear(d_model, d_model)
        self.wv = nn.Linear(d_model, d_model)
        self.wo = nn.Linear(d_model, d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, attention_mask=None):
        B, T, C = x.shape
        if attention_mask is None:
            attention_mask = torch.ones(B, T, dtype=torch.long, device=x.device)
        positions = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        placed = x + self.wpe(positions)
        q = self.wq(placed).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        k = self.wk(placed).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        v = self.wv(x).view(B, T, self.n_heads, self.d_head).transpose(1, 2)
        causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
        keep = causal & (attention_mask[:, None, None, :] != 0)
        att = torch.matmul(q, k.mT) / self.d_head**0.5
        att = att.masked_fill(keep.logical_not(), torch.finfo(att.dtype).min)
        att = self.drop(torch.softmax(att, dim=-1))
        y = torch.matmul(att, v).transpose(1, 2).contiguous().view(B, T, C)
        return self.wo(y)
