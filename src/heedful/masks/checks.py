"""Checks of the arguments from which masks are made."""

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.masks.grid import Align, Grid
from heedful.modes import any_set, values_known
from heedful.shapes import times

MOST_SHOWN: int = 12  # integers in the repr of a mask
MAX_KEYS: int = 2**31 - 1  # key ranges are int32; a larger size means the same as this one


def check_align(align: Align) -> None:
    """Raise ArgumentError unless the value is an alignment."""
    if align not in (None, "start", "end"):
        raise ArgumentError(
            "align",
            expected='"start", "end" or None',
            received=repr(align),
            remedy='"end" puts the last query at the last key, "start" the first query at the first key.',
        )


def check_count(argument: str, count: int, *, minimum: int) -> None:
    """Raise ArgumentError unless `count` is an integer of at least `minimum`."""
    if isinstance(count, bool) or not isinstance(count, int) or count < minimum:
        raise ArgumentError(
            argument,
            expected=f"an integer of at least {minimum}",
            received=repr(count),
            remedy="Pass a number of keys.",
        )


def as_lengths(argument: str, lengths: Tensor | Sequence[int] | int) -> Int64[Tensor, " *B"]:
    """Return lengths as int64 (B,), or without a dimension if one number stands for all batch entries.

    Raises:
        ArgumentError: the lengths are not integers of at least 0 in one dimension.
    """
    tensor = as_integers(argument, lengths)
    integral = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if not integral or tensor.dim() > 1 or any_set(tensor < 0, when_tracing=False):
        raise ArgumentError(
            argument,
            expected="integers of at least 0, one per batch entry: shape (B,)",
            received=f"{tensor.dtype} {tuple(tensor.shape)}"
            + (f" with a minimum of {tensor.min()}" if integral and tensor.numel() else ""),
            remedy="From a Boolean mask of real tokens (B, T): mask.sum(-1).",
        )
    return tensor.long()


def as_integers(argument: str, numbers: object) -> Tensor:
    """Return numbers as a tensor.

    Raises:
        ArgumentError: they are no numbers.
    """
    try:
        return torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            argument,
            expected="integers: a tensor, a list, or one number",
            received=f"{type(numbers).__name__} {numbers!r}",
            remedy="Pass a tensor of dtype int64.",
        ) from error


def check_no_array(argument: str, value: object) -> None:
    """Raise ArgumentError for a NumPy array or a list, which become tensors only where the caller says so."""
    if isinstance(value, list | tuple) or hasattr(value, "__array_interface__"):
        raise ArgumentError(
            argument,
            expected="a tensor",
            received="a NumPy array"
            if hasattr(value, "__array_interface__")
            else f"a {type(value).__name__}",
            remedy="Convert it by torch.as_tensor(…).",
        )


def check_dense_layout(argument: str, tensor: Tensor) -> None:
    """Raise ArgumentError for a sparse or a nested tensor, which no kernel reads."""
    if tensor.layout != torch.strided or tensor.is_nested:
        raise ArgumentError(
            argument,
            expected="a dense tensor, with its entries in strided memory",
            received="a nested tensor" if tensor.is_nested else f"layout {tensor.layout}",
            remedy="Pad sequences of different lengths by .to_padded_tensor(0.0), with mask=Padding(lengths), or pack "
            "them with mask=Documents(ids)."
            if tensor.is_nested
            else "Convert it by .to_dense().",
        )


def shown_argument(value: object) -> str:
    """Return an argument of a mask for its `repr`: a few integers as they are, other tensors by their shape."""
    if not isinstance(value, Tensor):
        return repr(value)
    row = value[0] if value.dim() == 2 and len(value) == 1 else value
    if row.dim() < 2 and row.numel() <= MOST_SHOWN and values_known(row):
        return repr(row.tolist())
    return f"tensor of {times(value.shape)}"


def check_key_ranges(mask: object, ranges: Intervals, grid: Grid) -> None:
    """Raise ArgumentError unless start and stop have the dtype, shape and device of key ranges for this grid.

    The native kernel reads them from memory as they are. Their values cannot do harm there.
    """
    start, stop = ranges.start, ranges.stop
    if (
        start.dtype == stop.dtype == torch.int32
        and start.dim() == 3
        and start.shape == stop.shape
        and start.shape[0] in (1, grid.batch)
        and start.shape[1] == grid.Tq
        and start.shape[2] > 0
        and start.device.type == stop.device.type == grid.device.type
    ):
        return
    raise ArgumentError(
        "mask",
        expected=f"key ranges of dtype int32 and shape (1, {grid.Tq}, R) or ({grid.batch}, {grid.Tq}, R) "
        f"on {grid.device}, where R is at least 1",
        received=f"{mask!r} with a start of {start.dtype} {tuple(start.shape)} on {start.device} "
        f"and a stop of {stop.dtype} {tuple(stop.shape)} on {stop.device}",
        remedy="The mask's method key_ranges(grid) can make them by Intervals.single(start, stop, grid.Tk).",
    )


def batch_of(tensor: Tensor) -> int | None:
    """Return the number of batch entries that a tensor distinguishes; None if it has one row for all."""
    return None if len(tensor) == 1 else len(tensor)
