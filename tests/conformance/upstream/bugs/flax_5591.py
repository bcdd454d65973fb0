"""Attention core modules, in the manner of nnx: the cache of an autoregressive decoder is a dictionary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Combine attention masks with a logical and; True means that attention takes place."""
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else torch.logical_and(combined, mask)
    return combined


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: nn.Module | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Computes dot-product attention given query, key, and value.

    Args:
      query: queries of shape ``[batch, q_length, num_heads, qk_depth_per_head]``.
      key, value: of shape ``[batch, kv_length, num_heads, depth_per_head]``.
      mask: mask of shape ``[batch..., num_heads, q_length, kv_length]``.
      dropout: applied to the attention weights.
      is_causal: If true, applies a causal mask.
    """
    depth = query.shape[-1]
    attn_weights = torch.einsum("...qhd,...khd->...hqk", query / depth**0.5, key)
    if is_causal:
        T, S = attn_weights.shape[-2:]
        causal_mask = torch.ones(T, S, dtype=torch.bool, device=query.device).tril()
        mask = combine_masks(mask, causal_mask)
    if mask is not None:
        big_neg = torch.finfo(attn_weights.dtype).min
        attn_weights = torch.where(mask, attn_weights, big_neg)
    attn_weights = torch.softmax(attn_weights, dim=-1)
    if dropout is not None:
        attn_weights = dropout(attn_weights)
    return torch.einsum("...hqk,...khd->...qhd", attn_weights, value)


class MultiHeadAttention(nn.Module):
    """Multi-head attention.

    Example usage::

      >>> layer = MultiHeadAttention(num_heads=8, in_features=5, qkv_features=16)
      >>> q, k, v = torch.randn(3, 4, 3, 5)
      >>> out = layer(q, k, v)              # different inputs
      >>> out = layer(q, is_causal=True)    # self attention
      >>> cache = layer.init_cache(batch_size=4, max_length=12)
      >>> out, cache = layer(q[:, :1], cache=cache, is_causal=True)
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        *,
        dropout_rate: float = 0.0,
        use_bias: bool = True,
    ):
        super().__init__()
        qkv_features = in_features if qkv_features is None else qkv_features
        out_features = in_features if out_features is None else out_features
        if qkv_features % num_heads != 0:
            raise ValueError(f"{num_heads=} must divide {qkv_features=}")
        self.num_heads = num_heads
        self.head_dim = qkv_features // num_heads
        self.query = nn.Linear(in_features, qkv_features, bias=use_bias)
        self.key = nn.Linear(in_features, qkv_features, bias=use_bias)
        self.value = nn.Linear(in_features, qkv_features, bias=use_bias)
        self.dropout = nn.Dropout(dropout_rate)
        self.out = nn.Linear(qkv_features, out_features, bias=use_bias)

    def init_cache(self, batch_size: int, max_length: int) -> dict[str, Any]:
        """An empty cache for decoding up to max_length tokens."""
        shape = (batch_size, max_length, self.num_heads, self.head_dim)
        zeros = self.key.weight.new_zeros(shape)
        return {"cached_key": zeros, "cached_value": zeros.clone(), "cache_index": 0}

    def forward(
        self,
        inputs_q: Tensor,
        inputs_k: Tensor | None = None,
        inputs_v: Tensor | None = None,
        mask: Tensor | None = None,
        cache: dict[str, Any] | None = None,
        is_causal: bool = False,
    ) -> Any:
        """Applies multi-head attention on the input data; with a cache, inputs_q are the next tokens."""
        inputs_k = inputs_q if inputs_k is None else inputs_k
        inputs_v = inputs_k if inputs_v is None else inputs_v
        query = self.query(inputs_q).unflatten(-1, (self.num_heads, self.head_dim))
        key = self.key(inputs_k).unflatten(-1, (self.num_heads, self.head_dim))
        value = self.value(inputs_v).unflatten(-1, (self.num_heads, self.head_dim))

        if cache is not None:
            cur_index, length = cache["cache_index"], query.shape[-3]
            cached_key, cached_value = cache["cached_key"].clone(), cache["cached_value"].clone()
            cached_key[:, cur_index : cur_index + length] = key
            cached_value[:, cur_index : cur_index + length] = value
            key, value = cached_key, cached_value
            # a query attends to the cached tokens up to its own position
            positions = cur_index + torch.arange(length, device=query.device)
            filled = torch.arange(key.shape[-3], device=query.device) <= positions[:, None]
            mask = combine_masks(mask, filled)
            cache = {
                "cached_key": key,
                "cached_value": value,
                "cache_index": cur_index + length,
            }
        # before
        x = dot_product_attention(query, key, value, mask, self.dropout, is_causal)
        # after
        is_causal = is_causal and cache is None
        x = dot_product_attention(query, key, value, mask, self.dropout, is_causal)
        # end
        out = self.out(x.flatten(-2))
        return out if cache is None else (out, cache)
