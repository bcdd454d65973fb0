"""Causal attention: a token attends to itself and to what came before, never to what comes after.

The mask of the decoder in Vaswani et al. 2017, §3.2.3. As everywhere in heedful a mask says what is kept:
True = attend.
"""

# ruff: noqa: RET504 - the last step has a name too: it is what `record` calls it by

import torch
from torch import Tensor, nn

from heedful.textbook.checks import check_dropout, check_input, check_sizes


def causal_mask(tokens: int) -> Tensor:
    """The lower triangle, Boolean (T, T): query i keeps key j where j ≤ i."""
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def weights_by_renormalising(scaled_scores: Tensor) -> Tensor:
    """Causal weights by the first route: softmax over all keys, zero the future, make rows add up to 1 again.

    Scaled scores (..., T, T) → weights (..., T, T). Figures C.causal.multiplied and C.causal.renormalised.
    The future still takes part in the softmax: where its scores lie so far above the past's that every kept
    weight underflows to 0, the row becomes 0 / 0 = NaN. The other route cannot fail that way.
    """
    mask = causal_mask(scaled_scores.shape[-1]).to(scaled_scores.device)
    full_weights = torch.softmax(scaled_scores, dim=-1)
    kept_weights = full_weights * mask
    row_sums = kept_weights.sum(dim=-1, keepdim=True)
    weights = kept_weights / row_sums
    return weights


def weights_by_minus_infinity(scaled_scores: Tensor) -> Tensor:
    """Causal weights by the second route: the future's scores become −∞, and exp(−∞) is 0.

    Scaled scores (..., T, T) → weights (..., T, T). Figures C.causal.masked_scores and C.causal.weights. Each
    row has its softmax over the kept keys alone, so nothing needs to be repaired afterwards.
    """
    mask = causal_mask(scaled_scores.shape[-1]).to(scaled_scores.device)
    masked_scores = torch.where(mask, scaled_scores, -torch.inf)
    weights = torch.softmax(masked_scores, dim=-1)
    return weights


class CausalAttention(nn.Module):
    """One head of causal self-attention with dropout on its weights.

    Takes x (B, T, d_in) or (T, d_in) for any T up to `context_length`, gives context (B, T, d_out) or
    (T, d_out), in the parameters' dtype. W_query, W_key, W_value are built in this order: figure
    C.causal_attention.batch depends on it.

    Args:
        d_in: features of a token.
        d_out: features of a query, a key, a value and so of the context.
        context_length: the most tokens the module accepts.
        dropout: the probability that training zeroes a weight (the others grow by 1 / (1 − dropout)).
        qkv_bias: whether the three projections add a bias.

    Raises:
        ArgumentError: a size below 1, a dropout outside [0, 1]; x of another rank or width, or too long.
    """

    mask: Tensor

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
        self.d_in, self.d_out, self.context_length = d_in, d_out, context_length
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        # A buffer follows the module to its device. It stays out of the state dict: nothing in it is learned,
        # weights may move to another context_length, and no checkpoint can bring a mask of the other polarity.
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
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
