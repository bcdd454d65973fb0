"""Exchange of tokens for heads between ranks: each rank gets all their tokens of some heads, and the reverse."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.parallel.agreement import agree_on_backward
from heedful.parallel.axes import Axis, Ranks, first_tag


class Heads(NamedTuple):
    """Some neighboring heads.

    Attributes:
        first: the first one.
        stop: one past the last one.
    """

    first: int
    stop: int


def split_heads(Hq: int, Hkv: int, ranks: int) -> list[tuple[Heads, Heads]]:
    """Return the query heads of each rank, as evenly as they divide, and the key heads that they read."""
    group = Hq // Hkv
    edges = [rank * Hq // ranks for rank in range(ranks + 1)]
    query_heads = [Heads(edges[rank], edges[rank + 1]) for rank in range(ranks)]
    return [(heads, Heads(heads.first // group, -(-heads.stop // group))) for heads in query_heads]


def aligned_key_heads(query_heads: Heads, group: int) -> list[int] | None:
    """Return which of a rank's key heads each of its query heads reads; None if it is the same number for each.

    Args:
        query_heads: the query heads of the rank.
        group: how many query heads read one key head.
    """
    read = [head // group - query_heads.first // group for head in range(*query_heads)]
    heads, key_heads = len(read), read[-1] + 1
    uniform = heads % key_heads == 0 and read == [i * key_heads // heads for i in range(heads)]
    return None if uniform else read


@dataclass(frozen=True, eq=False)
class Exchange:
    """How ranks exchange tokens for heads.

    Attributes:
        axis: the ranks.
        counts: how many tokens each rank has.
        rows: for each rank, int64, where its tokens stand among those of all of these ranks.
        call: the name of the function, for errors.
        number: the number of the call.
    """

    axis: Axis
    counts: tuple[int, ...]
    rows: tuple[Tensor, ...]
    call: str
    number: int


def to_heads(
    exchange: Exchange, tensors: list[tuple[Tensor, list[Heads]]], wide: bool
) -> list[Tensor]:
    """Return, of each tensor (B, H, tokens of this rank, size), this rank's heads of the tokens of all ranks.

    Args:
        exchange: the ranks and their tokens.
        tensors: the tensors, and the heads that each rank gets. Ranks may get the same ones.
        wide: whether to return float32 or better, so that gradients are added as that.
    """
    heads = [ranges for _, ranges in tensors]
    return list(_ToHeads.apply(exchange, heads, wide, *(tensor for tensor, _ in tensors)))


def to_tokens(exchange: Exchange, tensors: list[Tensor], heads: list[Heads]) -> list[Tensor]:
    """Return, of each tensor (B, heads of this rank, tokens of all ranks, size), all heads of this rank's tokens."""
    return list(_ToTokens.apply(exchange, heads, *tensors))


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, exchange: Exchange, heads: list[list[Heads]], wide: bool, *tensors: Tensor
    ) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.exchange, ctx.heads = exchange, heads
        ctx.like = [(tensor.dtype, tensor.shape[1]) for tensor in tensors]
        found = [
            _gather(exchange, i, t, h) for i, (t, h) in enumerate(zip(tensors, heads, strict=True))
        ]
        if wide:
            found = [
                tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in found
            ]
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        exchange = _of_backward_pass(ctx.exchange)
        found = [
            _scatter(exchange, i, gradient, heads, count).to(dtype)
            for i, (gradient, heads, (dtype, count)) in enumerate(
                zip(gradients, ctx.heads, ctx.like, strict=True)
            )
        ]
        return None, None, None, *found


class _ToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, heads: list[Heads], *tensors: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.exchange, ctx.heads = exchange, heads
        return tuple(
            _scatter(exchange, i, t, heads, heads[-1].stop).to(t.dtype)
            for i, t in enumerate(tensors)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        exchange = _of_backward_pass(ctx.exchange)
        return None, None, *(_gather(exchange, i, g, ctx.heads) for i, g in enumerate(gradients))


def _of_backward_pass(exchange: Exchange) -> Exchange:
    """Begin the backward pass, and return the exchange with its number."""
    (number,) = agree_on_backward(Ranks((exchange.axis,)), exchange.call, exchange.number)
    return replace(exchange, number=number)


def _gather(exchange: Exchange, number: int, tensor: Tensor, heads: list[Heads]) -> Tensor:
    """Send each rank its heads of this rank's tokens, and return this rank's heads of the tokens of all."""
    axis = exchange.axis
    B, _, _, size = tensor.shape
    mine = heads[axis.rank]
    whole = tensor.new_empty(B, mine.stop - mine.first, sum(exchange.counts), size)
    whole[:, :, exchange.rows[axis.rank]] = tensor[:, slice(*mine)]
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    outgoing = {rank: tensor[:, slice(*heads[rank])].contiguous() for rank in others}
    arriving = {
        rank: tensor.new_empty(B, whole.shape[1], exchange.counts[rank], size) for rank in others
    }
    axis.start(first_tag(exchange.number) + number, outgoing, arriving)()
    for rank, part in arriving.items():
        whole[:, :, exchange.rows[rank]] = part
    return whole


def _scatter(
    exchange: Exchange, number: int, tensor: Tensor, heads: list[Heads], count: int
) -> Tensor:
    """Send each rank its tokens of this rank's heads, and return all heads of this rank's tokens in float32 or better.

    Heads that several ranks have are sums.
    """
    axis = exchange.axis
    B, _, _, size = tensor.shape
    others = [rank for rank in range(axis.size) if rank != axis.rank]
    outgoing = {rank: tensor.index_select(2, exchange.rows[rank]) for rank in others}
    own = exchange.counts[axis.rank]
    arriving = {
        rank: tensor.new_empty(B, heads[rank].stop - heads[rank].first, own, size)
        for rank in others
    }
    axis.start(first_tag(exchange.number) + number, outgoing, arriving)()
    arriving[axis.rank] = tensor.index_select(2, exchange.rows[axis.rank])
    wide = torch.promote_types(tensor.dtype, torch.float32)
    whole = tensor.new_zeros(B, count, own, size, dtype=wide)
    for rank in range(axis.size):
        whole[:, slice(*heads[rank])] += arriving[rank]
    return whole
