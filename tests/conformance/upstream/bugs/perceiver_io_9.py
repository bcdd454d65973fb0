"""The attention of a Perceiver, whose queries and values may have other widths."""

from typing import Optional

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(
        self,
        kv_dim: int,
        q_dim: int,
        *,
        qk_out_dim: Optional[int] = None,
        v_out_dim: Optional[int] = None,
        num_heads: int = 4,
        dropout: float = 0.0,
    ):
        super().__init__()
        qk_out_dim = q_dim if qk_out_dim is None else qk_out_dim
        v_out_dim = qk_out_dim if v_out_dim is None else v_out_dim
        self.num_heads = num_heads
        self.qk_head_dim = qk_out_dim // num_heads
        self.v_head_dim = v_out_dim // num_heads
        self.k = nn.Linear(kv_dim, qk_out_dim)
        self.q = nn.Linear(q_dim, qk_out_dim)
        self.v = nn.Linear(kv_dim, v_out_dim)
        self.projection = nn.Linear(v_out_dim, q_dim)
        self.dropout = nn.Dropout(dropout)
        self.scale = self.qk_head_dim**-0.5

    def transform_for_attention(self, x: torch.Tensor, head_dim: int):
        return x.view(*x.shape[:-1], self.num_heads, head_dim).transpose(1, 2)

    def forward(self, inputs_kv, inputs_q, attention_mask: Optional[torch.Tensor] = None):
        """
        Args:
            inputs_kv: Key/Value embeddings of shape (B, M, C).
            inputs_q: Query embeddings of shape (B, N, D).
            attention_mask: Tensor of shape (B, M), True at keys to attend to.

        Returns:
            Tensor of shape (B, N, D)
        """
        q = self.transform_for_attention(self.q(inputs_q), self.qk_head_dim)
        k = self.transform_for_attention(self.k(inputs_kv), self.qk_head_dim)
        v = self.transform_for_attention(self.v(inputs_kv), self.v_head_dim)
        # before
        attention = q @ k.transpose(-2, -1) / self.scale
        # after
        attention = q @ k.transpose(-2, -1) * self.scale
        # end
        if attention_mask is not None:
            min_value = torch.finfo(attention.dtype).min
            attention = attention.masked_fill(~attention_mask[:, None, None, :], min_value)
        attention = self.dropout(attention.softmax(dim=-1))
        weighted = (attention @ v).transpose(1, 2).flatten(2)
        return self.projection(weighted)
