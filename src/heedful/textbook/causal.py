"""Causal attention: a token attends to itself and to earlier tokens, never to later ones.

This is the mask of the decoder in Vaswani et al. 2017, §3.2.3. As everywhere in heedful, a mask states what is kept:
True = attend.
"""

# ruff: noqa: RET504 - the last step has a name too, which `record` uses

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from heedful.textbook.checks import check_dropout, check_input, check_sizes


def causal_mask(tokens: int) -> Bool[Tensor, "T T"]:
    """Return the lower triangle, in which query i keeps key j if j ≤ i.

    Args:
        tokens: the number of tokens, T.

    Returns:
        The Boolean mask (T, T), True = attend.

    Examples:
        >>> causal_mask(2)
        tensor([[ True, False],
                [ True,  True]])
    """
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def weights_by_renormalising(scaled_scores: Float[Tensor, "*B T T"]) -> Float[Tensor, "*B T T"]:
    """Compute causal weights with a softmax over all keys, whose future entries are then zeroed and rows renormalized.

    Reproduces the figures C.causal.multiplied and C.causal.renormalised. Future keys still take part in the softmax. If
    their scores are so much larger that the weights of all earlier keys underflow to 0, the row becomes 0 / 0 = NaN.
    `weights_by_minus_infinity` cannot fail in this way.

    Args:
        scaled_scores: (…, T, T).

    Returns:
        The weights (…, T, T).

    Examples:
        >>> weights_by_renormalising(torch.zeros(2, 2))
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    mask = causal_mask(scaled_scores.shape[-1]).to(scaled_scores.device)
    full_weights = torch.softmax(scaled_scores, dim=-1)
    kept_weights = full_weights * mask
    row_sums = kept_weights.sum(dim=-1, keepdim=True)
    weights = kept_weights / row_sums
    return weights


def weights_by_minus_infinity(scaled_scores: Float[Tensor, "*B T T"]) -> Float[Tensor, "*B T T"]:
    """Compute causal weights by setting the scores of future keys to −∞ before the softmax, since exp(−∞) is 0.

    Reproduces the figures C.causal.masked_scores and C.causal.weights. The softmax of each row extends over the kept
    keys only, so the rows sum to 1 without a correction.

    Args:
        scaled_scores: (…, T, T).

    Returns:
        The weights (…, T, T).

    Examples:
        >>> weights_by_minus_infinity(torch.zeros(2, 2))
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    mask = causal_mask(scaled_scores.shape[-1]).to(scaled_scores.device)
    masked_scores = torch.where(mask, scaled_scores, -torch.inf)
    weights = torch.softmax(masked_scores, dim=-1)
    return weights


class CausalAttention(nn.Module):
    """One head of causal self-attention with dropout on its weights (Vaswani et al. 2017, §3.2.3).

    The input x is (B, T, d_in) or (T, d_in) with T up to `context_length`, the output (B, T, d_out) or (T, d_out), in
    the dtype of the parameters. W_query, W_key and W_value are created in this order, on which the figure
    C.causal_attention.batch depends.

    Args:
        d_in: the number of features of a token.
        d_out: the number of features of a query, a key, a value and the context.
        context_length: the maximum number of tokens.
        dropout: the probability that training zeroes a weight. The others are scaled by 1 / (1 − dropout).
        qkv_bias: whether the three projections have a bias.

    Raises:
        ArgumentError: a size is below 1, the dropout lies outside [0, 1], or x has another rank or width or too many
            tokens.

    Examples:
        >>> attention = CausalAttention(d_in=3, d_out=2, context_length=6)
        >>> attention(torch.rand(2, 5, 3)).shape
        torch.Size([2, 5, 2])
    """

    mask: Bool[Tensor, "context_length context_length"]

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        context_length: int,
        dropout: float = 0.0,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out, context_length=context_length)
        check_dropout(dropout)
        self.d_in: int = d_in
        self.d_out: int = d_out
        self.context_length: int = context_length
        self.W_query: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        # A buffer moves with the module to its device. It is not part of the state dict, because it is not trained:
        # weights can be loaded with another context_length, and a checkpoint cannot bring a mask of the other polarity.
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Float[Tensor, "*B T d_in"]) -> Float[Tensor, "*B T d_out"]:
        """Return the contexts (B, T, d_out) of the tokens x (B, T, d_in)."""
        check_input(x, self.d_in, self.context_length)
        T = x.shape[-2]

        queries = self.W_query(x)  # (B, T, d_out)
        keys = self.W_key(x)  # (B, T, d_out)
        values = self.W_value(x)  # (B, T, d_out)

        scores = queries @ keys.mT  # (B, T, T)
        scaled_scores = scores / self.d_out**0.5
        mask = self.mask[:T, :T]
        masked_scores = torch.where(mask, scaled_scores, -torch.inf)
        weights = torch.softmax(masked_scores, dim=-1)
        dropped_weights = self.dropout(weights)
        context = dropped_weights @ values  # (B, T, d_out)
        return context
