"""Attention in which each rank computes all tokens of some heads, and both ways together on a mesh."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heedful.dispatch import AUTO, choose
from heedful.dropout import Placement
from heedful.masks import Dense, KeyRanges, Mask
from heedful.parallel.arguments import Arguments, agree_on
from heedful.parallel.axes import Group, Ranks, ranks_of
from heedful.parallel.heads import (
    Exchange,
    Heads,
    aligned_key_heads,
    split_heads,
    to_heads,
    to_tokens,
)
from heedful.parallel.order import TokenOrder
from heedful.parallel.part import Options
from heedful.parallel.ring import run_ring
from heedful.parallel.travel import travel_of
from heedful.problem import AttentionProblem
from heedful.result import AttentionResult


def ulysses_attention(
    query: Float[Tensor, "B Hq own D"],
    key: Float[Tensor, "B Hkv own D"],
    value: Float[Tensor, "B Hkv own Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    group: Group,
    order: TokenOrder,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: bool = False,
) -> Float[Tensor, "B Hq own Dv"] | AttentionResult:
    """Compute `attention` of tokens that are sharded over ranks, each of which gets all tokens of some heads.

    It is DeepSpeed Ulysses (Jacobs et al. 2023, arXiv 2309.14509). Query heads are dealt out as evenly as they divide.
    A key head is sent to every rank that reads it, so there may be more ranks than key heads, but not than query heads.
    Results and gradients are as in `ring_attention`.

    Args:
        query: (B, Hq, tokens of this rank, D); float64, float32, bfloat16 or float16, on the CPU.
        key: (B, Hkv, tokens of this rank, D).
        value: (B, Hkv, tokens of this rank, Dv).
        mask: which keys each query sees, of all tokens in their original order. It may be dense.
        group: as in `ring_attention`.
        order: which tokens each rank has; with whole heads, any order gives equal work.
        bias: as in `ring_attention`. One for each query is exchanged like the queries.
        scale: as in `attention`, like softcap, sinks, dropout_p and kernel.
        return_lse: whether to return the log-sum-exp, too.

    Returns:
        The output (B, Hq, tokens of this rank, Dv) in the query's dtype; with `return_lse`,
        `AttentionResult(output, lse)`.

    Raises:
        ArgumentError: the arguments do not fit together on this rank, or there are more ranks than query heads.
        KernelError: the kernel requested by name cannot run them.
        RankError: another rank has other arguments, an error, or has ended; or it does not answer within the group's
            timeout.

    Examples:
        >>> from heedful import Causal, attention
        >>> from heedful.parallel import contiguous_order, shard, simulate
        >>> x, order = torch.randn(1, 2, 6, 8), contiguous_order(6, 2)
        >>> def on_each_rank(group):
        ...     mine = shard(x, group, order)
        ...     return ulysses_attention(mine, mine, mine, Causal(), group=group, order=order)
        >>> output = torch.cat(simulate(on_each_rank, 2), dim=2)
        >>> torch.allclose(output, attention(x, x, x, Causal()), atol=1e-6)
        True
    """
    ranks = ranks_of(group, dimensions=(1,))
    options = Options(scale, softcap, dropout_p, kernel)
    arguments = Arguments(query, key, value, mask, bias, sinks, options, order)
    return _exchanged("ulysses_attention", arguments, ranks, return_lse)


def mesh_attention(
    query: Float[Tensor, "B Hq own D"],
    key: Float[Tensor, "B Hkv own D"],
    value: Float[Tensor, "B Hkv own Dv"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    group: Group,
    order: TokenOrder,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    dropout_p: float = 0.0,
    kernel: str = AUTO,
    return_lse: bool = False,
) -> Float[Tensor, "B Hq own Dv"] | AttentionResult:
    """Compute `attention` of tokens that are sharded over a mesh of two dimensions: the ring and Ulysses together.

    Ranks of one row, along the second dimension, exchange tokens for heads, as in `ulysses_attention`. Between the
    rows, ranks that have the same heads form a ring, as in `ring_attention` (Fang and Zhao 2024, arXiv 2405.07719).

    Args:
        query: (B, Hq, tokens of this rank, D); float64, float32, bfloat16 or float16, on the CPU.
        key: (B, Hkv, tokens of this rank, D).
        value: (B, Hkv, tokens of this rank, Dv).
        mask: which keys each query sees, of all tokens in their original order; it must have key ranges.
        group: a DeviceMesh of two dimensions (ring, Ulysses), or what `simulate` passes.
        order: which tokens each rank has, in the order of the flattened mesh.
        bias: as in `ulysses_attention`.
        scale: as in `attention`, like softcap, sinks, dropout_p and kernel.
        return_lse: whether to return the log-sum-exp, too.

    Returns:
        As `ring_attention`.

    Raises:
        ArgumentError: the arguments do not fit together on this rank, or a row has more ranks than query heads.
        KernelError: the kernel requested by name cannot run them.
        RankError: another rank has other arguments, an error, or has ended; or it does not answer within the group's
            timeout.

    Examples:
        >>> from heedful import Causal, attention
        >>> from heedful.parallel import contiguous_order, shard, simulate
        >>> x, order = torch.randn(1, 2, 8, 8), contiguous_order(8, 4)
        >>> def on_each_rank(mesh):
        ...     mine = shard(x, mesh, order)
        ...     return mesh_attention(mine, mine, mine, Causal(), group=mesh, order=order)
        >>> output = torch.cat(simulate(on_each_rank, 2, 2), dim=2)
        >>> torch.allclose(output, attention(x, x, x, Causal()), atol=1e-6)
        True
    """
    ranks = ranks_of(group, dimensions=(2,))
    options = Options(scale, softcap, dropout_p, kernel)
    arguments = Arguments(query, key, value, mask, bias, sinks, options, order)
    return _exchanged("mesh_attention", arguments, ranks, return_lse)


def _exchanged(
    call: str, arguments: Arguments, ranks: Ranks, return_lse: bool
) -> Tensor | AttentionResult:
    """Exchange tokens for heads along the last axis, compute attention, and exchange back."""
    exchanging = ranks.axes[-1].size
    dense = len(ranks.axes) == 1
    arguments, _, numbers = agree_on(call, arguments, ranks, dense=dense, dealt_to=exchanging)
    axis, order = ranks.axes[-1], arguments.order
    first = ranks.rank // axis.size * axis.size
    places = order.places[first : first + axis.size]
    sorted_places, ascending = torch.cat(places).sort()
    counts = [len(part) for part in places]
    rows = torch.empty_like(ascending)
    rows[ascending] = torch.arange(len(ascending))
    exchange = Exchange(axis, tuple(counts), rows.split(counts), call, numbers[-1])
    dtype = arguments.query.dtype
    with torch.autocast("cpu", enabled=False):
        heads, dealt = _with_heads(arguments, exchange)
        if len(ranks.axes) == 1:
            output, lse = _attend(heads, dealt[axis.rank][0], sorted_places)
        else:
            joined = replace(heads, order=order.joined(axis.size))
            assert joined.mask is None or isinstance(joined.mask, Mask)
            travel = travel_of(joined.mask, joined.order, joined.query.shape[0])
            output, lse = run_ring(joined, travel, ranks.axes[0], numbers[0])
        output, lse = to_tokens(exchange, [output, lse.unsqueeze(-1)], [h for h, _ in dealt])
    output = output.to(dtype)
    return AttentionResult(output, lse.squeeze(-1)) if return_lse else output


def _with_heads(
    arguments: Arguments, exchange: Exchange
) -> tuple[Arguments, list[tuple[Heads, Heads]]]:
    """Return the arguments of this rank's heads and the tokens of all ranks; and the heads of each rank."""
    query, key, value, bias, sinks = arguments.tensors
    Hq, Hkv = query.shape[1], key.shape[1]
    dealt = split_heads(Hq, Hkv, exchange.axis.size)
    mine, _ = dealt[exchange.axis.rank]
    query_ranges, key_ranges = [h for h, _ in dealt], [k for _, k in dealt]
    shared_keys = sum(k.stop - k.first for k in key_ranges) > Hkv
    tensors = [(query, query_ranges), (key, key_ranges), (value, key_ranges)]
    if bias is not None and bias.shape[2] > 1:
        all_heads = [Heads(0, 1)] * len(dealt)
        tensors.append((bias, query_ranges if bias.shape[1] > 1 else all_heads))
    elif bias is not None:
        bias = bias[:, slice(*mine)] if bias.shape[1] > 1 else bias
    shared_bias = bias is not None and bias.shape[1] == 1
    query, key, value, *exchanged = to_heads(exchange, tensors, shared_keys or shared_bias)
    read = aligned_key_heads(mine, Hq // Hkv)
    if read is not None:
        key, value = key[:, read], value[:, read]
    options = replace(arguments.options, first_head=arguments.options.first_head + mine.first)
    heads = replace(
        arguments,
        query=query,
        key=key,
        value=value,
        bias=exchanged[0] if exchanged else bias,
        sinks=None if sinks is None else sinks[slice(*mine)],
        options=options,
    )
    return heads, dealt


def _attend(arguments: Arguments, heads: Heads, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return output and log-sum-exp of some heads of all tokens."""
    query, key, value, bias, sinks = arguments.tensors
    options, mask = arguments.options, arguments.mask
    if isinstance(mask, Mask):
        B, _, tokens, _ = query.shape
        ranges = mask.intervals(tokens, batch=B)
        if ranges is not None:
            mask = KeyRanges(ranges)
        else:
            dense = mask.dense(tokens, batch=B)
            mask = Dense(dense[:, slice(*heads)] if dense.shape[1] > 1 else dense)
    placement = Placement(options.seed, places, places, options.first_head)
    problem = AttentionProblem(
        *(query, key, value, mask, bias, options.scale, options.softcap, sinks, options.dropout_p),
        return_lse=True,
        placement=placement if options.dropout_p > 0 else None,
    )
    output, lse = choose(problem, options.kernel).run(problem)
    assert lse is not None  # a kernel that has none refuses the problem
    return output, lse
