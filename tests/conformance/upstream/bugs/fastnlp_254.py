"""Multi-head attention whose core was first written for three dimensions."""

import math

import torch
from torch import nn


class DotAttention(nn.Module):
    def __init__(self, key_size, value_size, dropout=0.0):
        super().__init__()
        self.key_size = key_size
        self.value_size = value_size
        self.scale = math.sqrt(key_size)
        self.drop = nn.Dropout(dropout)
        # before
        self.softmax = nn.Softmax(dim=2)
        # after
        self.softmax = nn.Softmax(dim=-1)
        # end

    def forward(self, Q, K, V, mask_out=None):
        """
        :param Q: [..., seq_len_q, key_size]
        :param K: [..., seq_len_k, key_size]
        :param V: [..., seq_len_k, value_size]
        :param mask_out: [..., 1, seq_len] or [..., seq_len_q, seq_len_k], True at what is masked out
        """
        output = torch.matmul(Q, K.transpose(-1, -2)) / self.scale
        if mask_out is not None:
            output = output.masked_fill(mask_out, -float("inf"))
        output = self.softmax(output)
        output = self.drop(output)
        return torch.matmul(output, V)


class MultiHeadAttention(nn.Module):
    def __init__(self, input_size, key_size, value_size, num_head, dropout=0.1):
        super().__init__()
        self.input_size = input_size
        self.key_size = key_size
        self.value_size = value_size
        self.num_head = num_head
        in_size = key_size * num_head
        self.q_in = nn.Linear(input_size, in_size)
        self.k_in = nn.Linear(input_size, in_size)
        self.v_in = nn.Linear(input_size, value_size * num_head)
        self.attention = DotAttention(key_size=key_size, value_size=value_size, dropout=dropout)
        self.out = nn.Linear(value_size * num_head, input_size)

    def forward(self, Q, K, V, atte_mask_out=None):
        """
        :param Q: [batch, seq_len_q, model_size]
        :param K: [batch, seq_len_k, model_size]
        :param V: [batch, seq_len_k, model_size]
        :param atte_mask_out: [batch, seq_len_k], True at what is masked out
        """
        batch, sq, _ = Q.size()
        sk = K.size(1)
        d_k, d_v, n_head = self.key_size, self.value_size, self.num_head
        q = self.q_in(Q).view(batch, sq, n_head, d_k).transpose(1, 2)
        k = self.k_in(K).view(batch, sk, n_head, d_k).transpose(1, 2)
        v = self.v_in(V).view(batch, sk, n_head, d_v).transpose(1, 2)
        if atte_mask_out is not None:
            atte_mask_out = atte_mask_out[:, None, None, :]
        atte = self.attention(q, k, v, atte_mask_out).transpose(1, 2).contiguous()
        return self.out(atte.view(batch, sq, -1))
