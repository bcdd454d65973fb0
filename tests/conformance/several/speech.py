"""Attention of a speech encoder, which gets the number of frames of each utterance."""

import torch
from torch import nn


def make_pad_mask(lengths, maxlen):
    """Return (B, T), True at padding."""
    return torch.arange(maxlen, device=lengths.device)[None, :] >= lengths[:, None]


class MultiHeadedAttention(nn.Module):
    def __init__(self, n_head: int, n_feat: int, dropout_rate: float):
        super().__init__()
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.dropout = nn.Dropout(p=dropout_rate)

    def forward_qkv(self, query, key, value):
        n_batch = query.size(0)
        q = self.linear_q(query).view(n_batch, -1, self.h, self.d_k)
        k = self.linear_k(key).view(n_batch, -1, self.h, self.d_k)
        v = self.linear_v(value).view(n_batch, -1, self.h, self.d_k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward_attention(self, value, scores, mask):
        mask = mask[:, None, None, :]
        scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        attn = torch.softmax(scores, dim=-1)
        x = torch.matmul(self.dropout(attn), value)
        x = x.transpose(1, 2).contiguous().view(value.size(0), -1, self.h * self.d_k)
        return self.linear_out(x)

    def forward(self, xs: torch.Tensor, xlens: torch.Tensor):
        """xs: (batch, time, n_feat). xlens: (batch,), the number of frames."""
        mask = make_pad_mask(xlens, xs.size(1))
        q, k, v = self.forward_qkv(xs, xs, xs)
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.d_k**0.5
        return self.forward_attention(v, scores, mask)
