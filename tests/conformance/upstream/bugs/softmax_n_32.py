"""Attention with a softmax whose weights may sum to less than one, and without a kernel."""

import math

import torch
from torch import Tensor, nn


def softmax_n(x: Tensor, n: float = 0.0, dim: int = -1) -> Tensor:
    """exp(x_i) / (n + sum_j exp(x_j)), which is the usual softmax if n is zero."""
    shift = x.amax(dim=dim, keepdim=True).clamp(min=0.0).detach()
    numerator = torch.exp(x - shift)
    return numerator / (n * torch.exp(-shift) + numerator.sum(dim=dim, keepdim=True))


def slow_attention_n(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    softmax_n_param: float | None = None,
    train: bool = True,
) -> Tensor:
    """
    Attention as it is defined, which any device can run.

    :param query: Query tensor; shape (N, ..., L, E).
    :param key: Key tensor; shape (N, ..., S, E).
    :param value: Value tensor; shape (N, ..., S, Ev).
    :param attn_mask: Added to the scores, or True where a query may look.
    :param dropout_p: Rate at which weights are dropped.
    :param is_causal: Whether a query sees no later key.
    :param scale: What the scores are multiplied by; 1 / sqrt(E) by default.
    :param softmax_n_param: What is added to the denominator of the softmax.
    :param train: Whether weights are dropped.
    """
    L, S = query.size(-2), key.size(-2)
    scale_factor = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    n = 0.0 if softmax_n_param is None else softmax_n_param

    attn_weight = query @ key.transpose(-2, -1) * scale_factor
    if is_causal:
        causal = torch.ones(L, S, dtype=torch.bool, device=query.device).tril()
        attn_weight = attn_weight.masked_fill(~causal, float("-inf"))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_weight = attn_weight.masked_fill(~attn_mask, float("-inf"))
        else:
            attn_weight = attn_weight + attn_mask

    attn_weight = softmax_n(attn_weight, n=n, dim=-1)
    # before
    attn_weight = torch.dropout(attn_weight, dropout_p, train=True)
    # after
    attn_weight = torch.dropout(attn_weight, dropout_p, train=train)
    # end
    return attn_weight @ value


class AttentionN(nn.Module):
    """Multi-head self-attention with softmax_n."""

    def __init__(self, dim: int, heads: int, n: float = 0.0, dropout: float = 0.1):
        super().__init__()
        self.heads = heads
        self.n = n
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        y = slow_attention_n(
            q, k, v, dropout_p=self.dropout, softmax_n_param=self.n, train=self.training
        )
        return self.out(y.transpose(1, 2).flatten(2))
