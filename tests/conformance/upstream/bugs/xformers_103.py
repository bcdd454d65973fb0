"""Scaled dot product attention as one of many interchangeable attentions."""

import math
from typing import Optional

import torch
from torch import nn


def scaled_query_key_softmax(
    q: torch.Tensor, k: torch.Tensor, att_mask: Optional[torch.Tensor]
) -> torch.Tensor:
    q = q / math.sqrt(k.size(-1))
    att = q @ k.transpose(-2, -1)
    if att_mask is not None:
        att = att.masked_fill(~att_mask, float("-inf"))
    return torch.softmax(att, dim=-1)


class ScaledDotProduct(nn.Module):
    r"""
    Implementing the Scaled Dot-Product attention proposed in `Attention is all you need`_.

    Args:
        dropout (float): the probability of an attention weight to be dropped
        causal (bool): no query sees later keys
    """

    def __init__(self, dropout: float = 0.0, causal: bool = False, *args, **kwargs):
        super().__init__()
        self.attn_drop = nn.Dropout(dropout, inplace=False)
        self.causal = causal

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        att_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        r"""
        q, k, v are of shape (batch, sequence, head size).
        att_mask: a 2D mask of shape (sequence, sequence), true where a query sees a key.
        """
        # before
        if att_mask is not None:
            if att_mask.ndim == 3:
                att_mask = att_mask[0]
            if self.causal:
                att_mask = att_mask & torch.ones_like(att_mask).tril()
        # after
        if att_mask is not None and att_mask.ndim == 3:
            att_mask = att_mask[0]
        if self.causal:
            causal_mask = q.new_ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
            att_mask = causal_mask if att_mask is None else att_mask & causal_mask
        # end
        att = scaled_query_key_softmax(q, k, att_mask)
        att = self.attn_drop(att)
        return att @ v
