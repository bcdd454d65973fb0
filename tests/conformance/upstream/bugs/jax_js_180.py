"""Attention in the layout of jax.nn: (batch, length, heads, head dim), with fewer heads of keys and values."""

from typing import Optional

import torch
from torch import Tensor, nn


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Optional[Tensor] = None,
    mask: Optional[Tensor] = None,
    scale: Optional[float] = None,
    is_causal: bool = False,
    key_value_seq_lengths: Optional[Tensor] = None,
) -> Tensor:
    """
    Scaled dot-product attention.

    Args:
        query: `(B, L, N, H)`
        key, value: `(B, S, K, H)`, where N is a multiple of K. Each of their heads is for N / K heads of queries.
        bias: Added to the scores, broadcast to `(B, N, L, S)`.
        mask: Broadcast to `(B, N, L, S)`, true where a query attends to a key.
        scale: Of the scores, one over the square root of H if it is not given.
        is_causal: Whether a query attends only to itself and to what is before it.
        key_value_seq_lengths: `(B,)`, the number of keys that are not padding.
    """
    _, L, N, H = query.shape
    _, S, K, _ = key.shape
    if N % K != 0:
        raise ValueError(f"the number of heads of queries, {N}, is not a multiple of {K}")
    if N != K:
        # before
        key = key.tile(1, 1, N // K, 1)
        value = value.tile(1, 1, N // K, 1)
        # after
        key = key.repeat_interleave(N // K, dim=2)
        value = value.repeat_interleave(N // K, dim=2)
        # end

    scores = torch.einsum("BLNH,BSNH->BNLS", query, key) * (H**-0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias

    allowed = torch.ones(L, S, dtype=torch.bool, device=query.device)
    if is_causal:
        allowed = allowed.tril()
    if key_value_seq_lengths is not None:
        real = torch.arange(S, device=query.device) < key_value_seq_lengths[:, None]
        allowed = allowed & real[:, None, None, :]
    if mask is not None:
        allowed = allowed & mask
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)

    return torch.einsum("BNLS,BSNH->BLNH", torch.softmax(scores, dim=-1), value)


class Attention(nn.Module):
    """
    The attention of a decoder-only language model.

    Args:
        embed_dim: Size of the model.
        num_heads: Heads of queries.
        num_kv_heads: Heads of keys and of values.
    """

    def __init__(self, embed_dim: int, num_heads: int, num_kv_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, bias=False)

    def forward(self, x: Tensor, seq_lengths: Optional[Tensor] = None) -> Tensor:
        """
        x: `(B, L, embed_dim)`
        seq_lengths: `(B,)`, the number of tokens of each row. The rest of a row is padding.
        """
        B, L, _ = x.shape
        query = self.q_proj(x).view(B, L, self.num_heads, self.head_dim)
        key = self.k_proj(x).view(B, L, self.num_kv_heads, self.head_dim)
        value = self.v_proj(x).view(B, L, self.num_kv_heads, self.head_dim)
        out = dot_product_attention(
            query, key, value, is_causal=True, key_value_seq_lengths=seq_lengths
        )
        return self.out_proj(out.flatten(2))
