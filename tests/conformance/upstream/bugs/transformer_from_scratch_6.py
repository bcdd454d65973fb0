"""The multi-head attention of an encoder-decoder, self-attention and cross-attention in one class."""

import math
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, hidden_dim: int, num_heads: int):
        super().__init__()
        assert hidden_dim % num_heads == 0
        self.qkv_dim = hidden_dim // num_heads
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(hidden_dim, 3 * num_heads * self.qkv_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.qkv_dim, hidden_dim, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        src_padding_mask: Optional[torch.BoolTensor] = None,
        future_mask: Optional[torch.BoolTensor] = None,
    ):
        """
        N = batch size, S = source sequence length, E = embedding dimensionality.

        :param x: Token embeddings, of shape (N, S, E).
        :param src_padding_mask: False at padding tokens, of shape (N, S).
        :param future_mask: False at future tokens, of shape (S, S).
        """
        batch_size, sequence_length, hidden_dim = x.size()
        qkv = self.qkv_proj(x)
        qkv = qkv.reshape(batch_size, sequence_length, self.num_heads, 3 * self.qkv_dim)
        q, k, v = qkv.permute(0, 2, 1, 3).chunk(3, dim=-1)
        values = self.scaled_dot_product(q, k, v, src_padding_mask, future_mask)
        # before
        values = values.reshape(batch_size, sequence_length, hidden_dim)
        # after
        values = values.permute(0, 2, 1, 3).reshape(batch_size, sequence_length, hidden_dim)
        # end
        return self.o_proj(values)

    def scaled_dot_product(self, q, k, v, src_padding_mask=None, future_mask=None):
        attn_logits = torch.matmul(q, torch.transpose(k, -2, -1)) / math.sqrt(q.size()[-1])
        if src_padding_mask is not None:
            mask = src_padding_mask[:, None, None, :]
            attn_logits = attn_logits.masked_fill(mask == 0, float("-inf"))
        if future_mask is not None:
            attn_logits = attn_logits.masked_fill(future_mask == 0, float("-inf"))
        attention = F.softmax(attn_logits, dim=-1)
        return torch.matmul(attention, v)
