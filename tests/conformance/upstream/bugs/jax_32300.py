"""Dot product attention with masks, causality and local windows, and a layer that uses it."""

from typing import Optional

import torch
from torch import nn


def _get_large_negative(dtype: torch.dtype) -> float:
    return -0.7 * torch.finfo(dtype).max


def _get_window_mask(t: int, s: int, local_window_size: tuple[int, int], device) -> torch.Tensor:
    """True at keys from `left` before a query to `right` after it."""
    left, right = local_window_size
    ahead = torch.arange(s, device=device) - torch.arange(t, device=device)[:, None]
    return ((ahead >= -left) & (ahead <= right))[None, None]


def _apply_masks(
    logits: torch.Tensor,
    mask: Optional[torch.Tensor],
    is_causal: bool,
    local_window_size: Optional[tuple[int, int]],
) -> torch.Tensor:
    # before
    sees_all = mask is None and not is_causal
    # after
    sees_all = mask is None and not is_causal and local_window_size is None
    # end
    if sees_all:
        return logits

    t, s = logits.shape[-2:]
    combined_mask = torch.ones(t, s, dtype=torch.bool, device=logits.device)[None, None]
    if mask is not None:
        assert mask.dtype == torch.bool
        combined_mask = combined_mask & mask
    if is_causal:
        combined_mask = combined_mask & torch.ones_like(combined_mask).tril()
    if local_window_size is not None:
        combined_mask = combined_mask & _get_window_mask(t, s, local_window_size, logits.device)

    return torch.where(combined_mask, logits, _get_large_negative(logits.dtype))


def dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    mask: Optional[torch.Tensor] = None,
    *,
    scale: Optional[float] = None,
    is_causal: bool = False,
    local_window_size: int | tuple[int, int] | None = None,
) -> torch.Tensor:
    """Attends to keys by their dot products with the queries.

    Args:
        query: of shape BTNH
        key: of shape BSNH
        value: of shape BSNH
        bias: what is added to the logits, of a shape that broadcasts to BNTS
        mask: True where a key takes part, of a shape that broadcasts to BNTS
        scale: factor of the logits, by default one over the square root of H
        is_causal: whether a query sees no key after it
        local_window_size: how many keys before and after a query it sees, one number or a pair
    """
    if isinstance(local_window_size, int):
        local_window_size = (local_window_size, local_window_size)
    if scale is None:
        scale = query.shape[-1] ** -0.5

    logits = torch.einsum("BTNH,BSNH->BNTS", query, key) * scale
    if bias is not None:
        logits = logits + bias
    padded_logits = _apply_masks(logits, mask, is_causal, local_window_size)
    probs = padded_logits.softmax(dim=-1)
    return torch.einsum("BNTS,BSNH->BTNH", probs, value)


class LocalSelfAttention(nn.Module):
    """Self-attention in which a token sees the tokens in a window around it."""

    def __init__(
        self,
        features: int,
        num_heads: int,
        local_window_size: int | tuple[int, int] | None = None,
        is_causal: bool = False,
        use_bias: bool = False,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.local_window_size = local_window_size
        self.is_causal = is_causal
        self.query = nn.Linear(features, features, bias=use_bias)
        self.key = nn.Linear(features, features, bias=use_bias)
        self.value = nn.Linear(features, features, bias=use_bias)
        self.out = nn.Linear(features, features, bias=use_bias)

    def forward(self, inputs: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        query, key, value = (
            dense(inputs).unflatten(-1, (self.num_heads, -1))
            for dense in (self.query, self.key, self.value)
        )
        x = dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            is_causal=self.is_causal,
            local_window_size=self.local_window_size,
        )
        return self.out(x.flatten(-2))
