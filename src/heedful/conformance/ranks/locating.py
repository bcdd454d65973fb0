"""The first tensor of a rank that is neither right nor on the way to one that is right."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from heedful.conformance.ranks.matching import KnownValues, is_constant
from heedful.conformance.ranks.run import Value


def first_departure(
    known: KnownValues, ranks: Sequence[Sequence[Value]], rank: int, *, leads_to: Tensor | None
) -> tuple[Value | None, bool]:
    """Return the first value of a rank that departs, and whether anything before it was found to be right.

    A value is right if it is known, or if those of all ranks at its place sum up to one. What a right value is made of
    is a way of computing it, and departs from nothing.

    Args:
        known: What is right.
        ranks: The values of all ranks, in the order in which they are computed.
        rank: The rank.
        leads_to: The wrong result; None if it is none of the values.
    """
    values = ranks[rank]
    right = [_is_right(known, ranks, rank, index) for index in range(len(values))]
    excused = _ways(values, right)
    leading = _leading_to(values, leads_to)
    for index, value in enumerate(values):
        if right[index] is False and index not in excused and index in leading and value.place:
            return value, any(it is True for it in right[:index])
    return None, any(it is True for it in right)


def _is_right(
    known: KnownValues, ranks: Sequence[Sequence[Value]], rank: int, index: int
) -> bool | None:
    """Return whether a value is right; None if it tells nothing."""
    value = ranks[rank][index]
    tensor = value.tensor
    if tensor is None or value.role == "beside" or is_constant(tensor):
        return None
    if known.hold(tensor, rank):
        return True
    same = [_at(values, index, value, tensor) for values in ranks]
    summands = [it for it in same if it is not None]
    return len(summands) == len(ranks) and len(ranks) > 1 and known.hold_sum(summands)


def _at(values: Sequence[Value], index: int, like: Value, tensor: Tensor) -> Tensor | None:
    """Return the tensor of another rank at the same place, if it is one of the same operation and shape."""
    other = values[index] if index < len(values) else None
    if other is None or other.tensor is None or other.operation != like.operation:
        return None
    return other.tensor if other.tensor.shape == tensor.shape else None


def _ways(values: Sequence[Value], right: Sequence[bool | None]) -> set[int]:
    """Return the indices of values from which a right one was computed."""
    ways: set[int] = set()
    for index in range(len(values) - 1, -1, -1):
        if right[index] is True or index in ways:
            ways.update(it for it in values[index].reads if right[it] is not True)
    return ways


def _leading_to(values: Sequence[Value], result: Tensor | None) -> set[int]:
    """Return the indices of the values that a result was made of; all of them if that is unknown."""
    found = [
        index
        for index, value in enumerate(values)
        if result is not None
        and value.tensor is not None
        and value.tensor.shape == result.shape
        and bool((value.tensor == result).all())
    ]
    if not found:
        return set(range(len(values)))
    leading = {found[-1]}
    for index in range(found[-1], -1, -1):
        if index in leading:
            leading.update(values[index].reads)
    return leading
