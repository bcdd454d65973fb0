"""Tensors of all tokens, and the part of them that a rank has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.parallel.agreement import Prepared, agree, agree_on_backward, describe
from heedful.parallel.axes import Axis, Group, Ranks, first_tag, ranks_of
from heedful.parallel.order import TokenOrder


def shard(tensor: Tensor, group: Group, order: TokenOrder, *, dim: int = -2) -> Tensor:
    """Return the tokens of this rank. Nothing is sent.

    The gradient of the whole tensor is this rank's share of it, and is 0 for the tokens of others.

    Args:
        tensor: a tensor of all tokens, of any shape and dtype.
        group: a process group, a DeviceMesh of one or two dimensions, or what `simulate` passes.
        order: which tokens each rank has.
        dim: the dimension of the tokens; for ids (B, T), pass 1.

    Returns:
        The tensor with the tokens of this rank, in ascending order.

    Raises:
        ArgumentError: the tensor has not all the tokens of the order, as one that is sharded already, or the order
            is for another number of ranks.

    Examples:
        >>> from heedful.parallel import contiguous_order, simulate
        >>> order = contiguous_order(4, 2)
        >>> simulate(lambda group: shard(torch.arange(4), group, order, dim=0), 2)
        [tensor([0, 1]), tensor([2, 3])]
    """
    ranks = ranks_of(group)
    check_order(order, ranks)
    if not -tensor.dim() <= dim < tensor.dim() or tensor.shape[dim] != order.tokens:
        raise ArgumentError(
            "tensor",
            expected=f"all {order.tokens} tokens in dimension {dim}",
            received=f"shape {tuple(tensor.shape)}",
            remedy="A tensor that is sharded already needs no shard(); else dim= names the dimension of the tokens.",
        )
    return tensor.index_select(dim, order.places[ranks.rank].to(tensor.device))


def unshard(tensor: Tensor, group: Group, order: TokenOrder, *, dim: int = -2) -> Tensor:
    """Return the tokens of all ranks, on every rank, in their original order.

    The gradient is that of the sum of the losses of all ranks: if each rank computes the same loss of the whole tensor,
    divide it by the number of ranks.

    Args:
        tensor: the tokens of this rank, as `shard` returns them.
        group: as in `shard`.
        order: as in `shard`.
        dim: as in `shard`.

    Returns:
        The tensor of all tokens.

    Raises:
        ArgumentError: the tensor has not the tokens of this rank, as one that is whole already.
        RankError: another rank passes a tensor of another dtype, shape or order, does not answer, or has ended.

    Examples:
        >>> from heedful.parallel import contiguous_order, simulate
        >>> order = contiguous_order(3, 2)
        >>> simulate(lambda group: unshard(torch.ones(len(order.places[group.axes[0].rank])), group, order, dim=0), 2)
        [tensor([1., 1., 1.]), tensor([1., 1., 1.])]
    """
    ranks = ranks_of(group)

    def prepare() -> Prepared[int]:
        check_order(order, ranks)
        own = len(order.places[ranks.rank])
        if not -tensor.dim() <= dim < tensor.dim() or tensor.shape[dim] != own:
            raise ArgumentError(
                "tensor",
                expected=f"the {own} tokens of this rank in dimension {dim}",
                received=f"shape {tuple(tensor.shape)}",
                remedy="A tensor of all tokens needs no unshard().",
            )
        facts = {
            "call": "unshard",
            "tensor": describe(tensor, tokens=dim),
            "order": order.digest,
            "gradients": torch.is_grad_enabled() and tensor.requires_grad,
        }
        return Prepared(dim % tensor.dim(), facts)

    place, _, numbers = agree(ranks, prepare)
    rows: Any = _Unshard.apply(tensor.movedim(place, 0), ranks, order, numbers)
    return rows.movedim(0, place)


def check_order(order: TokenOrder, ranks: Ranks) -> None:
    """Raise ArgumentError unless an order is one for these ranks."""
    if isinstance(order, TokenOrder) and order.ranks == ranks.size:
        return
    received = f"one for {order.ranks}" if isinstance(order, TokenOrder) else type(order).__name__
    raise ArgumentError(
        "order",
        expected=f"a TokenOrder for {ranks.size} ranks",
        received=received,
        remedy="balanced_order(mask, tokens, ranks) makes one.",
    )


class _Unshard(torch.autograd.Function):
    """Rows of this rank to rows of all, and gradients of all rows to the sum of those of this rank's."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, ranks: Ranks, order: TokenOrder, numbers: tuple[int, ...]
    ) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.ranks, ctx.order, ctx.number = ranks, order, numbers[-1]
        whole = rows.contiguous()
        for counts, axis, number in _stages(ranks, order, numbers):
            whole = torch.cat(_gathered(axis, whole, counts, first_tag(number)))
        return whole.index_select(0, order.inverse.to(rows.device))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ranks, order = ctx.ranks, ctx.order
        numbers = agree_on_backward(ranks, "unshard", ctx.number)
        wide = torch.promote_types(gradient.dtype, torch.float32)
        part = torch.cat([gradient[places] for places in order.places]).to(wide)
        for counts, axis, number in reversed(_stages(ranks, order, numbers)):
            part = _summed(axis, part.split(counts), first_tag(number))
        return part.to(gradient.dtype), None, None, None


def _stages(
    ranks: Ranks, order: TokenOrder, numbers: tuple[int, ...]
) -> list[tuple[list[int], Axis, int]]:
    """Return how many rows each rank of an axis has before they are gathered along it, the axis, and its call's number.

    The last axis comes first.
    """
    counts = [len(places) for places in order.places]
    stages: list[tuple[list[int], Axis, int]] = []
    rank = ranks.rank
    for axis, number in reversed(list(zip(ranks.axes, numbers, strict=True))):
        first = rank // axis.size * axis.size
        stages.append((counts[first : first + axis.size], axis, number))
        counts = [sum(counts[i : i + axis.size]) for i in range(0, len(counts), axis.size)]
        rank //= axis.size
    return stages


def _gathered(axis: Axis, rows: Tensor, counts: list[int], tag: int) -> list[Tensor]:
    """Return the rows of every rank of an axis."""
    parts = [rows.new_empty(count, *rows.shape[1:]) for count in counts]
    parts[axis.rank] = rows
    others = [r for r in range(axis.size) if r != axis.rank]
    axis.start(tag, dict.fromkeys(others, rows), {r: parts[r] for r in others})()
    return parts


def _summed(axis: Axis, parts: tuple[Tensor, ...], tag: int) -> Tensor:
    """Return the sum over an axis of this rank's part, in the order of the ranks."""
    others = [r for r in range(axis.size) if r != axis.rank]
    own = parts[axis.rank]
    received = {r: torch.empty_like(own, memory_format=torch.contiguous_format) for r in others}
    axis.start(tag, {r: parts[r].contiguous() for r in others}, received)()
    received[axis.rank] = own
    return torch.stack([received[r] for r in range(axis.size)]).sum(dim=0)
