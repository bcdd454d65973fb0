"""Masks that hold every query's keys: key ranges, and Boolean tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.lazy import lazy
from heedful.masks.checks import batch_of
from heedful.masks.grid import Grid
from heedful.masks.mask import Mask
from heedful.modes import any_set


@dataclass(frozen=True, eq=False)
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

    lowered: Intervals = field(repr=False)

    def __post_init__(self) -> None:
        _check_tensors(self.lowered)
        _check_values(self.lowered)

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


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Query i sees key j if the Boolean tensor is True there.

    Args:
        tensor: Boolean, 2 to 4 dimensions, broadcastable to (B, Hq, Tq, Tk); True = attend.

    Raises:
        ArgumentError: the tensor is not Boolean, or has fewer than 2 or more than 4 dimensions.

    Examples:
        >>> Dense(torch.eye(3, dtype=torch.bool)).dense(3)[0, 0].int()
        tensor([[1, 0, 0],
                [0, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """

    tensor: Bool[Tensor, " ..."] = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor) or self.tensor.dtype != torch.bool:
            received = getattr(self.tensor, "dtype", type(self.tensor).__name__)
            raise ArgumentError(
                "tensor",
                expected="a Boolean tensor, True = attend",
                received=str(received),
                remedy="Pass numbers that are added to the scores as bias=…; "
                "convert a mask of 0 and 1 by .bool().",
            )
        if not 2 <= self.tensor.dim() <= 4:
            raise ArgumentError(
                "tensor",
                expected="2 to 4 dimensions, broadcastable to (B, Hq, Tq, Tk)",
                received=f"shape {tuple(self.tensor.shape)}",
                remedy="Reshape a mask of keys (B, Tk) to (B, 1, 1, Tk), or better, use Padding(lengths).",
            )

    @classmethod
    def from_hidden(cls, hidden: Bool[Tensor, " ..."]) -> Dense:
        """Return the mask that hides what `hidden` marks with True.

        This is the polarity of `attn_mask` in `nn.MultiheadAttention` and of masks for `masked_fill`.

        Examples:
            >>> hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
            >>> bool((Dense.from_hidden(hidden).dense(3) == ~hidden).all())
            True
        """
        return cls(~hidden)

    @lazy
    def _four_dimensional(self) -> Bool[Tensor, "B Hq Tq Tk"]:
        return self.tensor[(None,) * (4 - self.tensor.dim())]

    @property
    def batch(self) -> int | None:
        return batch_of(self._four_dimensional)

    @property
    def heads(self) -> int | None:
        Hq = self._four_dimensional.shape[1]
        return None if Hq == 1 else Hq

    def own_sizes(self) -> tuple[int, int] | None:
        Tq, Tk = self.tensor.shape[-2:]
        if Tq == Tk == 1:
            return None
        return (Tk if Tq == 1 else Tq, Tq if Tk == 1 else Tk)

    def check(self, grid: Grid) -> None:
        _, _, Tq, Tk = self._four_dimensional.shape
        if Tq not in (1, grid.Tq) or Tk not in (1, grid.Tk):
            raise ArgumentError(
                "mask",
                expected=f"a tensor broadcastable to (B, Hq, {grid.Tq}, {grid.Tk})",
                received=f"Dense of shape {tuple(self.tensor.shape)}",
                remedy="Slice it to the queries and keys of this call: tensor[..., :Tq, :Tk].",
            )

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        tensor = self._four_dimensional.to(grid.device)
        indices = (
            torch.zeros_like(index) if size == 1 else index
            for index, size in zip((b, h, q, k), tensor.shape, strict=True)
        )
        return tensor[tuple(indices)]

    def dense(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Bool[Tensor, "B Hq Tq Tk"]:
        return super().dense(Tq, Tk, batch=batch, device=device).clone()

    def dense_on(self, grid: Grid) -> Bool[Tensor, "B Hq Tq Tk"]:
        return self._four_dimensional.to(grid.device).expand(-1, -1, grid.Tq, grid.Tk)

    def key_ranges(self, grid: Grid) -> None:
        return None


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
