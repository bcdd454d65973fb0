"""Multi-head attention of a course in which students build their own framework."""

import math

import torch
from torch import nn

MASK_VALUE = -1e9


def scaled_dot_product_attention(Q, K, V, mask=None):
    """
    Compute attention and its weights.

    Args:
        Q: Queries of shape (..., seq_q, head_dim).
        K: Keys of shape (..., seq_k, head_dim).
        V: Values of shape (..., seq_k, head_dim).
        mask: 1 where a query may look, 0 elsewhere, broadcastable to (..., seq_q, seq_k).

    Returns:
        The context of shape (..., seq_q, head_dim) and the weights of shape (..., seq_q, seq_k).
    """
    if K.shape[-1] != Q.shape[-1]:
        raise ValueError(f"Queries have size {Q.shape[-1]}, keys {K.shape[-1]}: they must be equal")
    scores = torch.matmul(Q, K.transpose(-2, -1)) / math.sqrt(Q.shape[-1])
    if mask is not None:
        scores = scores + (1.0 - mask.to(scores.dtype)) * MASK_VALUE
    weights = torch.softmax(scores, dim=-1)
    return torch.matmul(weights, V), weights


class MultiHeadAttention(nn.Module):
    """
    Several heads in parallel.

    Args:
        embed_dim: Size of a token.
        num_heads: Number of heads, which divides embed_dim.
    """

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        if embed_dim % num_heads != 0:
            raise ValueError(
                f"embed_dim ({embed_dim}) must be a multiple of num_heads ({num_heads})"
            )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _split_heads(self, x):
        batch, seq, _ = x.shape
        return x.reshape(batch, seq, self.num_heads, self.head_dim).transpose(1, 2)

    def _merge_heads(self, x):
        batch, _, seq, _ = x.shape
        return x.transpose(1, 2).reshape(batch, seq, self.embed_dim)

    def forward(self, query, key, value, mask=None):
        """
        Attend.

        Args:
            query: (batch, seq_q, embed_dim).
            key, value: (batch, seq_k, embed_dim).
            mask: 1 where a query may look, of shape (seq_q, seq_k) or (batch, seq_q, seq_k).
        """
        Q = self._split_heads(self.q_proj(query))
        K = self._split_heads(self.k_proj(key))
        V = self._split_heads(self.v_proj(value))

        mask_reshaped = mask
        if mask is not None and len(mask.shape) == 3:
            # One mask for all heads
            # before
            batch_size_mask, seq_len_mask, _ = mask.shape
            mask_reshaped = mask.reshape(batch_size_mask, 1, seq_len_mask, seq_len_mask)
            # after
            batch_size_mask, seq_q_mask, seq_k_mask = mask.shape
            mask_reshaped = mask.reshape(batch_size_mask, 1, seq_q_mask, seq_k_mask)
            # end
        attended, _ = scaled_dot_product_attention(Q, K, V, mask=mask_reshaped)
        return self.out_proj(self._merge_heads(attended))
