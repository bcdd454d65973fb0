"""The first tensor of a rank that is neither right nor on the way to one that is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from heedful.conformance.ranks.matching import KnownValues, is_constant
from heedful.conformance.ranks.run import Value


@dataclass(frozen=True)
class Departure:
    """A value that is wrong, and what it was made of is right.

    Attributes:
        rank: The rank that has it.
        value: The value.
    """

    rank: int
    value: Value


class Comparison:
    """The values of all ranks, and which of them are right.

    A value is right if it is known, or if those of all ranks at its place sum up to one.

    Args:
        known: What is right.
        ranks: The values of all ranks, in the order in which they are computed.
    """

    def __init__(self, known: KnownValues, ranks: Sequence[Sequence[Value]]) -> None:
        self._ranks: Sequence[Sequence[Value]] = ranks
        self._right: list[list[bool | None]] = [
            [_is_right(known, ranks, rank, index) for index in range(len(values))]
            for rank, values in enumerate(ranks)
        ]

    @property
    def right_share(self) -> float:
        """The share of right values among those that tell anything."""
        told = [it for row in self._right for it in row if it is not None]
        return sum(told) / max(len(told), 1)

    def first_departure(self, results: Sequence[Tensor] = ()) -> Departure | None:
        """Return the first value of any rank that departs; None if there is none.

        What a right value is made of is a way of computing it, and departs from nothing.

        Args:
            results: The wrong results, to which the value leads; empty if they are none of the values.
        """
        found: list[tuple[int, int]] = []
        for rank, (values, right) in enumerate(zip(self._ranks, self._right, strict=True)):
            ways = _ways(values, right)
            leading = _leading_to(values, results)
            departing = (
                index
                for index, value in enumerate(values)
                if right[index] is False and index not in ways and index in leading and value.place
            )
            found += [(index, rank) for index in departing][:1]
        if not found:
            return None
        index, rank = min(found)
        return Departure(rank, self._ranks[rank][index])


def _is_right(
    known: KnownValues, ranks: Sequence[Sequence[Value]], rank: int, index: int
) -> bool | None:
    """Return whether a value is right; None if it tells nothing."""
    value = ranks[rank][index]
    tensor = value.tensor
    if tensor is None or value.role == "beside" or is_constant(tensor) or not is_written(value):
        return None
    if known.hold(tensor, rank):
        return True
    same = [_at(values, index, value, tensor) for values in ranks]
    summands = [it for it in same if it is not None]
    return len(summands) == len(ranks) and len(ranks) > 1 and known.hold_sum(summands)


def is_written(value: Value) -> bool:
    """Check whether a value is more than memory that nothing has been written to."""
    return not value.operation.removeprefix("new_").startswith("empty")


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


def _leading_to(values: Sequence[Value], results: Sequence[Tensor]) -> set[int]:
    """Return the indices of the values that results were made of; all of them if that is unknown."""
    found = [
        index
        for index, value in enumerate(values)
        for result in results
        if value.tensor is not None
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
