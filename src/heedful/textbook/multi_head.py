"""Multi-head attention: several causal attentions side by side, each in its own subspace.

See Vaswani et al. 2017, §3.2.2. The wrapper runs its heads one by one. The split module computes all heads in one
product. The einsum module does the same with named indices, and allows values of another size than queries and keys.
"""

# ruff: noqa: RET504 - the last step has a name too, which `record` uses

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from heedful.textbook.causal import CausalAttention, causal_mask
from heedful.textbook.checks import check_dropout, check_heads, check_input, check_sizes


class MultiHeadAttentionWrapper(nn.Module):
    """Several `CausalAttention` modules, run one by one, with concatenated outputs (Vaswani et al. 2017, §3.2.2).

    The input x is (B, T, d_in) or (T, d_in) for any T up to `context_length`, the output (B, T, num_heads * d_out) or
    (T, num_heads * d_out). The heads are created in order, on which the figure C.multi_head.wrapper depends.

    Args:
        d_in: the number of features of a token.
        d_out: the number of features of **each** head's context. (In the modules below, it counts all heads together.)
        context_length: the maximum number of tokens.
        dropout: the probability that training zeroes a weight.
        num_heads: the number of heads.
        qkv_bias: whether the projections of queries, keys and values have a bias.

    Raises:
        ArgumentError: a size is below 1, the dropout lies outside [0, 1], or x has another rank or width or too many
            tokens.

    Examples:
        >>> attention = MultiHeadAttentionWrapper(3, 2, context_length=6, num_heads=4)
        >>> attention(torch.rand(2, 5, 3)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        context_length: int,
        dropout: float = 0.0,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(num_heads=num_heads)
        self.heads: nn.ModuleList = nn.ModuleList(
            CausalAttention(
                d_in, d_out, context_length=context_length, dropout=dropout, qkv_bias=qkv_bias
            )
            for _ in range(num_heads)
        )

    def forward(self, x: Float[Tensor, "*B T d_in"]) -> Float[Tensor, "*B T d_context"]:
        """Return the contexts (B, T, num_heads * d_out) of the tokens x (B, T, d_in)."""
        contexts = [head(x) for head in self.heads]
        context = torch.cat(contexts, dim=-1)  # (B, T, num_heads * d_out)
        return context


class MultiHeadAttention(nn.Module):
    """Multi-head attention with one wide projection for all heads, split into heads by a view.

    The input x is (B, T, d_in) or (T, d_in) for any T up to `context_length`, the output (B, T, d_out) or (T, d_out).
    W_query, W_key, W_value and out_proj are created in this order, on which the figure C.multi_head.split depends. See
    Vaswani et al. 2017, §3.2.2.

    Args:
        d_in: the number of features of a token.
        d_out: the number of features of all heads **together**, and of the output. A multiple of `num_heads`.
        context_length: the maximum number of tokens.
        dropout: the probability that training zeroes a weight.
        num_heads: the number of heads, each with `head_dim` = d_out / num_heads features.
        qkv_bias: whether the projections of queries, keys and values have a bias. `out_proj` always has one.

    Raises:
        ArgumentError: a size is below 1, `d_out` is not a multiple of `num_heads`, the dropout lies outside [0, 1], or
            x has another rank or width or too many tokens.

    Examples:
        >>> attention = MultiHeadAttention(3, 8, context_length=6, num_heads=4)
        >>> attention(torch.rand(2, 5, 3)).shape
        torch.Size([2, 5, 8])
    """

    mask: Bool[Tensor, "context_length context_length"]

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        context_length: int,
        dropout: float = 0.0,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out, context_length=context_length, num_heads=num_heads)
        check_heads(d_out, num_heads)
        check_dropout(dropout)
        self.d_in: int = d_in
        self.d_out: int = d_out
        self.context_length: int = context_length
        self.num_heads: int = num_heads
        self.head_dim: int = d_out // num_heads
        self.W_query: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value: nn.Linear = nn.Linear(d_in, d_out, bias=qkv_bias)
        # The heads are separate up to here; this layer combines them.
        self.out_proj: nn.Linear = nn.Linear(d_out, d_out)
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Float[Tensor, "*B T d_in"]) -> Float[Tensor, "*B T d_out"]:
        """Return the output (B, T, d_out) for the tokens x (B, T, d_in)."""
        check_input(x, self.d_in, self.context_length)
        T, H, D = x.shape[-2], self.num_heads, self.head_dim

        queries = self.W_query(x)  # (B, T, H*D)
        keys = self.W_key(x)
        values = self.W_value(x)

        # The H*D features are split into H heads of D. Heads then move before tokens, as batch entries of the products.
        queries_by_head = queries.unflatten(-1, (H, D)).transpose(-3, -2)  # (B, H, T, D)
        keys_by_head = keys.unflatten(-1, (H, D)).transpose(-3, -2)
        values_by_head = values.unflatten(-1, (H, D)).transpose(-3, -2)

        scores = queries_by_head @ keys_by_head.mT  # (B, H, T, T)
        scaled_scores = scores / D**0.5  # a dot product has D terms, not H*D
        mask = self.mask[:T, :T]
        masked_scores = torch.where(mask, scaled_scores, -torch.inf)
        weights = torch.softmax(masked_scores, dim=-1)
        dropped_weights = self.dropout(weights)
        context_by_head = dropped_weights @ values_by_head  # (B, H, T, D)

        # Transposing back leaves the memory ordered by head, so that flattening H and D has to copy it.
        # `demonstrations.contiguous_copies` shows when; `compiled_memory_use` shows what torch.compile makes of it.
        context = context_by_head.transpose(-3, -2).flatten(start_dim=-2)  # (B, T, H*D)
        output = self.out_proj(context)
        return output


class EinsumMultiHeadAttention(nn.Module):
    """Multi-head attention with `torch.einsum`, in which values may differ in size from queries and keys.

    The indices are i for queries, j for keys, h for heads, k for the features of queries and keys, and v for the
    features of values. No product needs a transpose, because einsum identifies each index by its letter.

    The input x is (B, T, d_in) or (T, d_in) for any T up to `context_length`, the output (B, T, d_out) or (T, d_out),
    which is the concatenated contexts of the heads. There is no output projection. The first token, which attends only
    to itself, therefore returns its own value, and with equal weights this is `MultiHeadAttentionWrapper`.

    Args:
        d_in: the number of features of a token.
        d_out: the number of features of all heads' contexts together. A multiple of `num_heads`. Each head's values
            have `value_dim` = d_out / num_heads features.
        context_length: the maximum number of tokens.
        dropout: the probability that training zeroes a weight.
        num_heads: the number of heads.
        key_dim: the number of features of each head's queries and keys. Default: `value_dim`.
        qkv_bias: whether the projections of queries, keys and values have a bias.

    Raises:
        ArgumentError: a size is below 1, `d_out` is not a multiple of `num_heads`, the dropout lies outside [0, 1], or
            x has another rank or width or too many tokens.

    Examples:
        >>> attention = EinsumMultiHeadAttention(3, 8, context_length=6, num_heads=4, key_dim=5)
        >>> attention(torch.rand(2, 5, 3)).shape
        torch.Size([2, 5, 8])
    """

    mask: Bool[Tensor, "context_length context_length"]

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        context_length: int,
        dropout: float = 0.0,
        num_heads: int,
        key_dim: int | None = None,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(d_in=d_in, d_out=d_out, context_length=context_length, num_heads=num_heads)
        check_heads(d_out, num_heads)
        check_dropout(dropout)
        value_dim = d_out // num_heads
        key_dim = value_dim if key_dim is None else key_dim
        check_sizes(key_dim=key_dim)
        self.d_in: int = d_in
        self.d_out: int = d_out
        self.context_length: int = context_length
        self.num_heads: int = num_heads
        self.key_dim: int = key_dim
        self.value_dim: int = value_dim
        self.W_query: nn.Linear = nn.Linear(d_in, num_heads * key_dim, bias=qkv_bias)
        self.W_key: nn.Linear = nn.Linear(d_in, num_heads * key_dim, bias=qkv_bias)
        self.W_value: nn.Linear = nn.Linear(d_in, num_heads * value_dim, bias=qkv_bias)
        self.dropout: nn.Dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Float[Tensor, "*B T d_in"]) -> Float[Tensor, "*B T d_out"]:
        """Return the output (B, T, d_out) for the tokens x (B, T, d_in)."""
        check_input(x, self.d_in, self.context_length)
        T, H, K, V = x.shape[-2], self.num_heads, self.key_dim, self.value_dim

        queries = self.W_query(x)  # (B, T, H*K)
        keys = self.W_key(x)  # (B, T, H*K)
        values = self.W_value(x)  # (B, T, H*V)

        queries_by_head = queries.unflatten(-1, (H, K))  # (B, T, H, K)
        keys_by_head = keys.unflatten(-1, (H, K))  # (B, T, H, K)
        values_by_head = values.unflatten(-1, (H, V))  # (B, T, H, V)

        scores = torch.einsum("...ihk,...jhk->...hij", queries_by_head, keys_by_head)
        scaled_scores = scores / K**0.5
        mask = self.mask[:T, :T]
        masked_scores = torch.where(mask, scaled_scores, -torch.inf)
        weights = torch.softmax(masked_scores, dim=-1)
        dropped_weights = self.dropout(weights)
        context_by_head = torch.einsum("...hij,...jhv->...ihv", dropped_weights, values_by_head)
        context = context_by_head.flatten(start_dim=-2)  # (B, T, H*V)
        return context
