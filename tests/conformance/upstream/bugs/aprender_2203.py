"""Multi-head attention out of small functions on tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def reshape_for_attention(x: Tensor, num_heads: int, head_dim: int) -> Tensor:
    """[batch, seq, embed] -> [batch, heads, seq, head_dim]"""
    batch, seq, _ = x.shape
    # before
    out = x.data.new_empty(batch, num_heads, seq, head_dim)
    for h in range(num_heads):
        out[:, h] = x.data[:, :, h * head_dim : (h + 1) * head_dim]
    return out
    # after
    return x.reshape(batch, seq, num_heads, head_dim).transpose(1, 2)
    # end


def reshape_from_attention(x: Tensor) -> Tensor:
    """[batch, heads, seq, head_dim] -> [batch, seq, embed]"""
    batch, num_heads, seq, head_dim = x.shape
    # before
    out = x.data.new_empty(batch, seq, num_heads * head_dim)
    for h in range(num_heads):
        out[:, :, h * head_dim : (h + 1) * head_dim] = x.data[:, h]
    return out
    # after
    return x.transpose(1, 2).reshape(batch, seq, num_heads * head_dim)
    # end


def transpose_last_two(x: Tensor) -> Tensor:
    return x.transpose(-2, -1)


def matmul_batched(a: Tensor, b: Tensor) -> Tensor:
    """The product of the last two dimensions, for each entry of the batch and each head."""
    assert a.shape[:-2] == b.shape[:-2], "batch dimensions differ"
    m, n = a.shape[-2], b.shape[-1]
    # before
    data = torch.bmm(a.data.flatten(0, -3), b.data.flatten(0, -3))
    # after
    data = torch.bmm(a.flatten(0, -3), b.flatten(0, -3))
    # end
    return data.view(*a.shape[:-2], m, n)


def softmax_last_dim(x: Tensor) -> Tensor:
    # before
    x = x.data
    # after
    # end
    exps = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exps / exps.sum(dim=-1, keepdim=True)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout: nn.Dropout
) -> tuple[Tensor, Tensor]:
    """
    query: [batch, heads, target, head_dim]
    key, value: [batch, heads, source, head_dim]
    attn_mask: added to the scores, and broadcast to [batch, heads, target, source]
    """
    scale = 1.0 / math.sqrt(query.shape[-1])
    scores = matmul_batched(query, transpose_last_two(key)) * scale
    if attn_mask is not None:
        scores = scores + attn_mask
    weights = softmax_last_dim(scores)
    return matmul_batched(dropout(weights), value), weights


class MultiHeadAttention(nn.Module):
    """Multi-Head Attention (Vaswani et al., 2017).

    Projects queries, keys and values, attends in each head, and projects the heads back.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout_p: float = 0.0):
        super().__init__()
        assert embed_dim % num_heads == 0, "embed_dim must be divisible by num_heads"
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout_p)

    def forward_qkv(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        q = reshape_for_attention(self.q_proj(query), self.num_heads, self.head_dim)
        k = reshape_for_attention(self.k_proj(key), self.num_heads, self.head_dim)
        v = reshape_for_attention(self.v_proj(value), self.num_heads, self.head_dim)
        attn_output, attn_weights = scaled_dot_product_attention(q, k, v, attn_mask, self.dropout)
        return self.out_proj(reshape_from_attention(attn_output)), attn_weights

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Self-attention. Returns the output and the weights."""
        return self.forward_qkv(x, x, x, attn_mask)
