"""The self-attention of an encoder, which makes its mask from the mask of padding."""

import math

import torch
from torch import nn


class EncoderSelfAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_concat = nn.Linear(d_model, d_model)
        self.softmax = nn.Softmax(dim=-1)

    def make_src_mask(self, not_pad):
        # before
        src_mask = not_pad.unsqueeze(1).unsqueeze(3)
        # after
        src_mask = not_pad.unsqueeze(1).unsqueeze(2)
        # end
        return src_mask

    def forward(self, x, not_pad):
        """
        :param x: [batch_size, length, d_model]
        :param not_pad: [batch_size, length], 0 at padding
        """
        batch_size, length, d_model = x.size()
        mask = self.make_src_mask(not_pad)
        q = self.w_q(x).view(batch_size, length, self.n_head, -1).transpose(1, 2)
        k = self.w_k(x).view(batch_size, length, self.n_head, -1).transpose(1, 2)
        v = self.w_v(x).view(batch_size, length, self.n_head, -1).transpose(1, 2)
        score = (q @ k.transpose(2, 3)) / math.sqrt(q.size(-1))
        score = score.masked_fill(mask == 0, torch.finfo(score.dtype).min)
        out = self.softmax(score) @ v
        out = out.transpose(1, 2).contiguous().view(batch_size, length, d_model)
        return self.w_concat(out)
