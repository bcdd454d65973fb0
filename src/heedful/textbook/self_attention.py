"""Self-attention: softmax(Q Kᵀ / √d) V, with queries, keys and values projected from the same tokens.

Scaled dot-product attention of Vaswani et al. 2017, §3.2.1. V1 keeps its weights as bare parameters, V2 in
`nn.Linear`; with the same weights they are the same function.
"""

# ruff: noqa: RET504 - the last step has a name too: it is what `record` calls it by

import torch
from torch import Tensor, nn

from heedful.textbook.checks import check_input, check_sizes


class SelfAttentionV1(nn.Module):
    """Self-attention with its three weight matrices as `nn.Parameter`.

    Takes x (B, T, d_in) or (T, d_in), gives context (B, T, d_out) or (T, d_out), in the parameters' dtype.
    W_query, W_key, W_value are (d_in, d_out), uniform in [0, 1), drawn in this order: figures
    B.self_attention.parameters and C.self_attention.parameters depend on it.

    Raises:
        ArgumentError: a size below 1; x of another rank or width.
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out)
        self.d_in, self.d_out = d_in, d_out
        self.W_query = nn.Parameter(torch.rand(d_in, d_out))
        self.W_key = nn.Parameter(torch.rand(d_in, d_out))
        self.W_value = nn.Parameter(torch.rand(d_in, d_out))

    def forward(self, x: Tensor) -> Tensor:
        check_input(x, self.d_in)

        queries = x @ self.W_query  # (B, T, d_out): what each token looks for
        keys = x @ self.W_key  # (B, T, d_out): what each token offers to be found by
        values = x @ self.W_value  # (B, T, d_out): what each token hands over when found

        scores = queries @ keys.mT  # (B, T, T): row i holds query i against every key
        # A dot product of d_out terms has a variance that grows as d_out; √d_out keeps softmax from peaking.
        scaled_scores = scores / self.d_out**0.5
        weights = torch.softmax(scaled_scores, dim=-1)  # each row adds up to 1
        context = weights @ values  # (B, T, d_out)
        return context


class SelfAttentionV2(nn.Module):
    """Self-attention with its projections as `nn.Linear`, which also initialises them for training.

    Takes x (B, T, d_in) or (T, d_in), gives context (B, T, d_out) or (T, d_out), in the parameters' dtype.
    W_query, W_key, W_value are built in this order: figures B.self_attention.linear and
    C.self_attention.linear depend on it. `nn.Linear` keeps its weight as (d_out, d_in), V1's transposed.

    Args:
        d_in: features of a token.
        d_out: features of a query, a key, a value and so of the context.
        qkv_bias: whether the three projections add a bias.

    Raises:
        ArgumentError: a size below 1; x of another rank or width.
    """

    def __init__(self, d_in: int, d_out: int, *, qkv_bias: bool = False) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out)
        self.d_in, self.d_out = d_in, d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def forward(self, x: Tensor) -> Tensor:
        check_input(x, self.d_in)

        queries = self.W_query(x)  # (B, T, d_out)
        keys = self.W_key(x)  # (B, T, d_out)
        values = self.W_value(x)  # (B, T, d_out)

        scores = queries @ keys.mT  # (B, T, T)
        scaled_scores = scores / self.d_out**0.5
        weights = torch.softmax(scaled_scores, dim=-1)
        context = weights @ values  # (B, T, d_out)
        return context
