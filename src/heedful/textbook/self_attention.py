"""Self-attention: softmax(Q Kᵀ / √d) V, with queries, keys and values projected from the same tokens.

This is the scaled dot-product attention of Vaswani et al. 2017, §3.2.1, equation 1. V1 stores its weights as
parameters, V2 in `nn.Linear`. With the same weights, both compute the same function.
"""

# ruff: noqa: RET504 - the last step has a name too, which `record` uses

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heedful.textbook.checks import check_input, check_sizes


class SelfAttentionV1(nn.Module):
    """Self-attention with its three weight matrices as `nn.Parameter` (Vaswani et al. 2017, §3.2.1, equation 1).

    The input x is (B, T, d_in) or (T, d_in), the output (B, T, d_out) or (T, d_out), in the dtype of the parameters.
    W_query, W_key and W_value are (d_in, d_out) and uniform in [0, 1). They are drawn in this order, on which the
    figures B.self_attention.parameters and C.self_attention.parameters depend.

    Args:
        d_in: the number of features of a token.
        d_out: the number of features of a query, a key, a value and the context.

    Raises:
        ArgumentError: a size is below 1, or x has another rank or width.

    Examples:
        >>> attention = SelfAttentionV1(d_in=3, d_out=2)
        >>> attention(torch.rand(6, 3)).shape
        torch.Size([6, 2])
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out)
        self.d_in: int = d_in
        self.d_out: int = d_out
        self.W_query: nn.Parameter = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key: nn.Parameter = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value: nn.Parameter = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Float[Tensor, "*B T d_in"]) -> Float[Tensor, "*B T d_out"]:
        """Return the contexts (B, T, d_out) of the tokens x (B, T, d_in)."""
        check_input(x, self.d_in)

        queries = x @ self.W_query  # (B, T, d_out): what each token looks for
        keys = x @ self.W_key  # (B, T, d_out): what each token can be found by
        values = x @ self.W_value  # (B, T, d_out): what each token passes on when found

        scores = queries @ keys.mT  # (B, T, T): row i holds query i against every key
        # The variance of a dot product grows with its d_out terms; dividing by √d_out keeps softmax from saturating.
        scaled_scores = scores / self.d_out**0.5
        weights = torch.softmax(scaled_scores, dim=-1)  # each row sums to 1
        context = weights @ values  # (B, T, d_out)
        return context


class SelfAttentionV2(nn.Module):
    """Self-attention with its projections as `nn.Linear`, which initializes them for training.

    The input x is (B, T, d_in) or (T, d_in), the output (B, T, d_out) or (T, d_out), in the dtype of the parameters.
    W_query, W_key and W_value are created in this order, on which the figures B.self_attention.linear and
    C.self_attention.linear depend. `nn.Linear` stores its weight as (d_out, d_in), the transpose of V1's.

    Args:
        d_in: the number of features of a token.
        d_out: the number of features of a query, a key, a value and the context.
        qkv_bias: whether the three projections have a bias.

    Raises:
        ArgumentError: a size is below 1, or x has another rank or width.

    Examples:
        >>> attention = SelfAttentionV2(d_in=3, d_out=2)
        >>> attention(torch.rand(6, 3)).shape
        torch.Size([6, 2])
    """

    def __init__(self, d_in: int, d_out: int, *, qkv_bias: bool = False) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out)
        self.d_in: int = d_in
        self.d_out: int = d_out
        self.W_query: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x: Float[Tensor, "*B T d_in"]) -> Float[Tensor, "*B T d_out"]:
        """Return the contexts (B, T, d_out) of the tokens x (B, T, d_in)."""
        check_input(x, self.d_in)

        queries = self.W_query(x)  # (B, T, d_out)
        keys = self.W_key(x)  # (B, T, d_out)
        values = self.W_value(x)  # (B, T, d_out)

        scores = queries @ keys.mT  # (B, T, T)
        scaled_scores = scores / self.d_out**0.5
        weights = torch.softmax(scaled_scores, dim=-1)
        context = weights @ values  # (B, T, d_out)
        return context
