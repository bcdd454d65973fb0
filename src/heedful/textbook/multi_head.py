"""Multi-head attention: several causal attentions side by side, each in its own subspace.

Vaswani et al. 2017, §3.2.2. The wrapper runs its heads one by one; the split module runs all in one product;
the einsum module does the same with named indices, and lets values differ in size from queries and keys.
"""

# ruff: noqa: RET504 - the last step has a name too: it is what `record` calls it by

import torch
from torch import Tensor, nn

from heedful.textbook.causal import CausalAttention, causal_mask
from heedful.textbook.checks import check_dropout, check_heads, check_input, check_sizes


class MultiHeadAttentionWrapper(nn.Module):
    """`num_heads` modules `CausalAttention`, run one by one, their contexts side by side.

    Takes x (B, T, d_in) or (T, d_in) for any T up to `context_length`, gives context (B, T, num_heads * d_out)
    or (T, num_heads * d_out). The heads are built in order: figure C.multi_head.wrapper depends on it.

    Args:
        d_in: features of a token.
        d_out: features of **each** head's context. (The modules below count all heads together.)
        context_length: the most tokens the module accepts.
        dropout: the probability that training zeroes a weight.
        num_heads: how many heads.
        qkv_bias: whether the projections of queries, keys and values add a bias.

    Raises:
        ArgumentError: a size below 1, a dropout outside [0, 1]; x of another rank or width, or too long.
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
        self.heads = nn.ModuleList(
            CausalAttention(
                d_in, d_out, context_length=context_length, dropout=dropout, qkv_bias=qkv_bias
            )
            for _ in range(num_heads)
        )

    def forward(self, x: Tensor) -> Tensor:
        contexts = [head(x) for head in self.heads]
        context = torch.cat(contexts, dim=-1)  # (B, T, num_heads * d_out)
        return context


class MultiHeadAttention(nn.Module):
    """All heads at once: one wide projection each for queries, keys and values, split into heads by a view.

    Takes x (B, T, d_in) or (T, d_in) for any T up to `context_length`, gives (B, T, d_out) or (T, d_out).
    W_query, W_key, W_value, out_proj are built in this order: figure C.multi_head.split depends on it.

    Args:
        d_in: features of a token.
        d_out: features of all heads **together**, and of the output; a multiple of `num_heads`.
        context_length: the most tokens the module accepts.
        dropout: the probability that training zeroes a weight.
        num_heads: how many heads, each with `head_dim` = d_out / num_heads features.
        qkv_bias: whether the projections of queries, keys and values add a bias. `out_proj` always does.

    Raises:
        ArgumentError: a size below 1, a `d_out` that the heads do not divide, a dropout outside [0, 1];
            x of another rank or width, or too long.
    """

    mask: Tensor

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
        self.d_in, self.d_out, self.context_length = d_in, d_out, context_length
        self.num_heads, self.head_dim = num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)  # lets the heads, apart until here, mix
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        check_input(x, self.d_in, self.context_length)
        T, H, D = x.shape[-2], self.num_heads, self.head_dim

        queries = self.W_query(x)  # (B, T, H*D)
        keys = self.W_key(x)
        values = self.W_value(x)

        # Features H*D fall into H heads of D; heads then move before tokens, to be batch entries of the products.
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

        # Transposing back leaves memory ordered by head; flattening H and D into one has to copy it
        # (`demonstrations.contiguous_copies` says when, `compiled_memory_use` what torch.compile makes of it).
        context = context_by_head.transpose(-3, -2).flatten(start_dim=-2)  # (B, T, H*D)
        output = self.out_proj(context)
        return output


class EinsumMultiHeadAttention(nn.Module):
    """Multi-head attention by `torch.einsum`, where a value's size is free of the key's.

    Indices: i query, j key, h head, k feature of query and key, v feature of value. Neither product needs a
    transpose: einsum finds each index by its letter.

    Takes x (B, T, d_in) or (T, d_in) for any T up to `context_length`, gives context (B, T, d_out) or
    (T, d_out), the heads' contexts side by side. There is no output projection: so the first token, which sees
    itself alone, gives back its own value, and with equal weights this is `MultiHeadAttentionWrapper`.

    Args:
        d_in: features of a token.
        d_out: features of all heads' contexts together; a multiple of `num_heads`. Each head's values have
            `value_dim` = d_out / num_heads features.
        context_length: the most tokens the module accepts.
        dropout: the probability that training zeroes a weight.
        num_heads: how many heads.
        key_dim: features of each head's queries and keys; `value_dim` where not given.
        qkv_bias: whether the projections of queries, keys and values add a bias.

    Raises:
        ArgumentError: a size below 1, a `d_out` that the heads do not divide, a dropout outside [0, 1];
            x of another rank or width, or too long.
    """

    mask: Tensor

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
        self.d_in, self.d_out, self.context_length = d_in, d_out, context_length
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_dim, value_dim
        self.W_query = nn.Linear(d_in, num_heads * key_dim, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, num_heads * key_dim, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, num_heads * value_dim, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", causal_mask(context_length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
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
