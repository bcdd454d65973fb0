"""Attention Is All You Need: the sublayers of the Transformer."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.init as init


class ScaledDotProductAttention(nn.Module):
    """Scaled Dot-Product Attention"""

    def __init__(self, d_model, attn_dropout=0.1):
        super().__init__()
        self.temper = np.power(d_model, 0.5)
        self.dropout = nn.Dropout(attn_dropout)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, q, k, v, attn_mask=None):
        attn = torch.bmm(q, k.transpose(1, 2)) / self.temper

        if attn_mask is not None:
            assert attn_mask.size() == attn.size(), (attn_mask.size(), attn.size())
            attn = attn.masked_fill(attn_mask.bool(), -float("inf"))

        attn = self.softmax(attn)
        attn = self.dropout(attn)
        output = torch.bmm(attn, v)

        return output, attn


class MultiHeadAttention(nn.Module):
    """Multi-Head Attention module"""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()

        self.n_head = n_head
        self.d_k = d_k
        self.d_v = d_v

        self.w_qs = nn.Parameter(torch.empty(n_head, d_model, d_k))
        self.w_ks = nn.Parameter(torch.empty(n_head, d_model, d_k))
        self.w_vs = nn.Parameter(torch.empty(n_head, d_model, d_v))

        # before
        self.attention = ScaledDotProductAttention(d_model)
        # after
        self.attention = ScaledDotProductAttention(d_k)
        # end
        self.layer_norm = nn.LayerNorm(d_model)
        self.proj = nn.Linear(n_head * d_v, d_model)
        self.dropout = nn.Dropout(dropout)

        init.xavier_normal_(self.w_qs)
        init.xavier_normal_(self.w_ks)
        init.xavier_normal_(self.w_vs)

    def forward(self, q, k, v, attn_mask=None):
        """attn_mask: True where a key must not be seen, (mb_size, len_q, len_k)"""
        d_k, d_v = self.d_k, self.d_v
        n_head = self.n_head

        residual = q

        mb_size, len_q = q.size(0), q.size(1)
        len_k = k.size(1)
        assert v.size(1) == len_k

        # project for each head; the heads become a part of the batch: (n_head*mb_size) x len x d
        q_s = torch.einsum("blm,hmd->hbld", q, self.w_qs).reshape(-1, len_q, d_k)
        k_s = torch.einsum("blm,hmd->hbld", k, self.w_ks).reshape(-1, len_k, d_k)
        v_s = torch.einsum("blm,hmd->hbld", v, self.w_vs).reshape(-1, len_k, d_v)

        if attn_mask is not None:
            attn_mask = attn_mask.repeat(n_head, 1, 1)
        outputs, attns = self.attention(q_s, k_s, v_s, attn_mask=attn_mask)

        # heads side by side: mb_size x len_q x (n_head*d_v)
        outputs = torch.cat(outputs.view(n_head, mb_size, len_q, d_v).unbind(0), dim=-1)
        outputs = self.proj(outputs)
        outputs = self.dropout(outputs)

        return self.layer_norm(outputs + residual), attns
