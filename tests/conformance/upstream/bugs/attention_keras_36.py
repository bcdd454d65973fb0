"""Multi-head attention that folds the heads into the batch, the heads first."""

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, n_head, d_model, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        self.d_k = self.d_v = d_k = d_v = d_model // n_head
        self.qs_layer = nn.Linear(d_model, n_head * d_k, bias=False)
        self.ks_layer = nn.Linear(d_model, n_head * d_k, bias=False)
        self.vs_layer = nn.Linear(d_model, n_head * d_v, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.w_o = nn.Linear(n_head * d_v, d_model)

    def reshape1(self, x):
        s = x.shape  # [batch_size, len_q, n_head * d_k]
        x = x.reshape(s[0], s[1], self.n_head, s[2] // self.n_head)
        x = x.permute(2, 0, 1, 3)
        return x.reshape(-1, s[1], s[2] // self.n_head)  # [n_head * batch_size, len_v, d_v]

    def reshape2(self, x):
        s = x.shape  # [n_head * batch_size, len_v, d_v]
        x = x.reshape(self.n_head, -1, s[1], s[2])
        x = x.permute(1, 2, 0, 3)
        return x.reshape(-1, s[1], self.n_head * self.d_v)

    def forward(self, q, k, v, mask=None):
        """mask: [batch_size, len_q, len_k], 1 at keys to attend to."""
        qs = self.reshape1(self.qs_layer(q))
        ks = self.reshape1(self.ks_layer(k))
        vs = self.reshape1(self.vs_layer(v))
        attn = torch.bmm(qs, ks.transpose(1, 2)) / self.d_k**0.5
        if mask is not None:
            # before
            mask = mask.repeat_interleave(self.n_head, dim=0)
            # after
            mask = mask.repeat(self.n_head, 1, 1)
            # end
            attn = attn.masked_fill(mask == 0, float("-inf"))
        attn = self.dropout(torch.softmax(attn, dim=-1))
        head = self.reshape2(torch.bmm(attn, vs))
        return self.w_o(head)
