"""Attention of a speech encoder that knows how far two frames are apart."""

import math

import torch
from torch import nn


class RelPositionalEncoding(nn.Module):
    """Makes the encodings of distances, and keeps them for later calls.

    Args:
        d_model (int): The size of an encoding.
        max_len (int): The number of distances to make at first.
    """

    def __init__(self, d_model, max_len=64):
        super().__init__()
        self.d_model = d_model
        self.pe = None
        self.extend_pe(max_len)

    def extend_pe(self, length):
        """Make more encodings if the input is longer than all before."""
        if self.pe is not None and self.pe.size(0) >= length:
            return
        position = torch.arange(0, length, dtype=torch.float32).unsqueeze(1)
        # before
        position = position.flip(0)
        # after
        # the row of a distance is the distance
        # end
        steps = torch.arange(0, self.d_model, 2, dtype=torch.float32)
        div_term = torch.exp(steps * -(math.log(10000.0) / self.d_model))
        pe = torch.zeros(length, self.d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.pe = pe

    def forward(self, x):
        self.extend_pe(x.size(1))
        return self.pe[: x.size(1)].to(x)


class RelPositionMultiHeadedAttention(nn.Module):
    """Multi-head attention with the distances of frames: the same before and after a frame."""

    def __init__(self, n_head, n_feat, dropout_rate=0.0):
        super().__init__()
        self.h = n_head
        self.d_k = n_feat // n_head
        self.pos_enc = RelPositionalEncoding(n_feat)
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(self.h, 1, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(self.h, 1, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout_rate)

    def rel_shift(self, x):
        """Turn scores of (query, row of the encodings) into scores of (query, key)."""
        # before
        zero_pad = x.new_zeros(*x.shape[:3], 1)
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(*x.shape[:2], x.size(3) + 1, x.size(2))
        return x_padded[:, :, 1:].reshape(x.shape)
        # after
        frames = torch.arange(x.size(2), device=x.device)
        distances = (frames[:, None] - frames[None, :]).abs()
        return x.gather(-1, distances.expand(x.shape))
        # end

    def forward(self, x, mask=None):
        """`mask` of shape (batch, 1, time) is True at the frames that are real."""
        n_batch, time, _ = x.shape
        q = self.linear_q(x).view(n_batch, time, self.h, self.d_k).transpose(1, 2)
        k = self.linear_k(x).view(n_batch, time, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(n_batch, time, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(self.pos_enc(x)).view(time, self.h, self.d_k).transpose(0, 1)

        matrix_ac = torch.matmul(q + self.pos_bias_u, k.transpose(-2, -1))
        matrix_bd = torch.matmul(q + self.pos_bias_v, p.transpose(-2, -1))
        scores = (matrix_ac + self.rel_shift(matrix_bd)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        attn = self.dropout(torch.softmax(scores, dim=-1))
        out = torch.matmul(attn, v).transpose(1, 2).contiguous().view(n_batch, time, -1)
        return self.linear_out(out)
