"""The mask that holds every query's own ranges of keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.masks.checks import batch_of
from heedful.masks.grid import Grid
from heedful.masks.mask import Mask
from heedful.modes import any_set


@dataclass(frozen=True, eq=False, repr=False)
class KeyRanges(Mask):
    """Query i sees the keys in its own ranges: a mask that was lowered once, for use in many layers.

    Args:
        lowered: the ranges of each query, as `Mask.intervals` returns them. The mask is valid only for the
            numbers of queries and keys that they were made for.

    Raises:
        ArgumentError: the ranges are not as `Intervals` describes; on use, if there are other numbers of queries
            and keys. `torch.compile` checks shapes and dtypes, but no values.

    Examples:
        >>> from heedful import Window
        >>> KeyRanges(Window(2).intervals(3)).dense(3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """

    lowered: Intervals

    def __post_init__(self) -> None:
        _check_tensors(self.lowered)
        _check_values(self.lowered)

    def __repr__(self) -> str:
        Tq, Tk = self.own_sizes()
        return f"KeyRanges({Tq} queries, {Tk} keys)"

    @property
    def batch(self) -> int | None:
        return batch_of(self.lowered.start)

    def own_sizes(self) -> tuple[int, int]:
        return self.lowered.start.shape[1], self.lowered.Tk

    def check(self, grid: Grid) -> None:
        sizes = self.lowered.start.shape[1], self.lowered.Tk
        if sizes != (grid.Tq, grid.Tk):
            raise ArgumentError(
                "mask",
                expected=f"key ranges for {grid.Tq} queries and {grid.Tk} keys",
                received=f"KeyRanges for {sizes[0]} queries and {sizes[1]} keys",
                remedy="Lower a mask for the sizes of this call: mask.intervals(Tq, Tk).",
            )

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        return self._lowered_on(b.device).mask_function()(b, h, q, k)

    def key_ranges(self, grid: Grid) -> Intervals:
        return self._lowered_on(grid.device)

    def _lowered_on(self, device: torch.device) -> Intervals:
        start, stop = self.lowered.start, self.lowered.stop
        if start.device == device:
            return self.lowered
        return Intervals(start.to(device), stop.to(device), self.lowered.Tk)


def _check_tensors(lowered: Intervals) -> None:
    """Raise ArgumentError unless these are key ranges of the right dtype and shape."""
    start, stop = getattr(lowered, "start", None), getattr(lowered, "stop", None)
    if not isinstance(start, Tensor) or not isinstance(stop, Tensor):
        raise _key_ranges_error("Intervals", type(lowered).__name__)
    if not start.dtype == stop.dtype == torch.int32 or start.device != stop.device:
        raise _key_ranges_error(
            "start and stop of dtype int32 on one device",
            f"{start.dtype} on {start.device} and {stop.dtype} on {stop.device}",
        )
    if start.shape != stop.shape or start.dim() != 3 or start.shape[-1] < 1:
        raise _key_ranges_error(
            "start and stop of one shape (B or 1, Tq, R), where R is at least 1",
            f"shape {tuple(start.shape)} and {tuple(stop.shape)}",
        )


def _check_values(lowered: Intervals) -> None:
    """Raise ArgumentError unless the ranges lie within the keys, ascending and disjoint."""
    start, stop, Tk = lowered.start, lowered.stop, lowered.Tk
    if type(start) is not Tensor or start.is_meta:
        return  # tensors that only stand for others have no values
    if any_set((start < 0) | (start > stop) | (stop > Tk), when_tracing=False):
        raise _key_ranges_error(
            f"0 <= start <= stop <= {Tk}, the number of keys, in every range",
            f"start from {start.min()} to {start.max()}, stop from {stop.min()} to {stop.max()}",
        )
    late = (start[..., 1:] < stop[..., :-1]) & (start < stop)[..., 1:]
    if start.shape[-1] > 1 and any_set(late, when_tracing=False):
        raise _key_ranges_error(
            "ascending, disjoint ranges of each query",
            "a range that starts before the last one stops",
        )


def _key_ranges_error(expected: str, received: str) -> ArgumentError:
    return ArgumentError(
        "lowered",
        expected=expected,
        received=received,
        remedy="Pass what mask.intervals(Tq, Tk) returns.",
    )
