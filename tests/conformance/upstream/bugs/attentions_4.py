"""Attention for speech recognition, whose heads are part of the batch."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScaledDotProductAttention(nn.Module):
    """
    Args:
        dim (int): size of a head

    Inputs: query, key, value, mask
        - query, key, value: tensors of shape (heads * batch, length, dim)
        - mask (heads * batch, q_len, k_len): True where a query does not look
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.sqrt_dim = np.sqrt(dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None):
        score = torch.bmm(query, key.transpose(1, 2)) / self.sqrt_dim
        if mask is not None:
            score.masked_fill_(mask.view(score.size()), -float("Inf"))
        attn = F.softmax(score, -1)
        context = torch.bmm(attn, value)
        return context, attn


class MultiHeadAttention(nn.Module):
    """
    Args:
        d_model (int): size of keys, values and queries (default: 512)
        num_heads (int): number of heads (default: 8)

    Inputs: query, key, value, mask
        - query (batch, q_len, d_model), key (batch, k_len, d_model), value (batch, v_len, d_model)
        - mask (batch, q_len, k_len): True at padding

    Returns: output, attn
    """

    def __init__(self, d_model: int = 512, num_heads: int = 8) -> None:
        super().__init__()
        assert d_model % num_heads == 0, "d_model % num_heads should be zero."
        self.d_head = int(d_model / num_heads)
        self.num_heads = num_heads
        self.scaled_dot_attn = ScaledDotProductAttention(self.d_head)
        self.query_proj = nn.Linear(d_model, self.d_head * num_heads)
        self.key_proj = nn.Linear(d_model, self.d_head * num_heads)
        self.value_proj = nn.Linear(d_model, self.d_head * num_heads)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None):
        batch_size = value.size(0)

        query = self.query_proj(query).view(
            batch_size, -1, self.num_heads, self.d_head
        )  # BxQ_LENxNxD
        key = self.key_proj(key).view(batch_size, -1, self.num_heads, self.d_head)  # BxK_LENxNxD
        value = self.value_proj(value).view(
            batch_size, -1, self.num_heads, self.d_head
        )  # BxV_LENxNxD

        query = (
            query.permute(2, 0, 1, 3)
            .contiguous()
            .view(batch_size * self.num_heads, -1, self.d_head)
        )
        key = (
            key.permute(2, 0, 1, 3).contiguous().view(batch_size * self.num_heads, -1, self.d_head)
        )
        value = (
            value.permute(2, 0, 1, 3)
            .contiguous()
            .view(batch_size * self.num_heads, -1, self.d_head)
        )

        if mask is not None:
            # before
            mask = mask.unsqueeze(1).repeat(1, self.num_heads, 1, 1)  # BxNxQ_LENxK_LEN
            # after
            mask = mask.unsqueeze(0).repeat(self.num_heads, 1, 1, 1)  # NxBxQ_LENxK_LEN
            # end

        context, attn = self.scaled_dot_attn(query, key, value, mask)

        context = context.view(self.num_heads, batch_size, -1, self.d_head)
        context = context.permute(1, 2, 0, 3).contiguous()
        context = context.view(batch_size, -1, self.num_heads * self.d_head)  # BxQ_LENxND
        return context, attn
