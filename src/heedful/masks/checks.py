"""Checks of the arguments from which masks are made."""

from collections.abc import Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.masks.grid import Align
from heedful.modes import any_set

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


def as_lengths(argument: str, lengths: Tensor | Sequence[int] | int) -> Int64[Tensor, " B"]:
    """Return lengths as int64 (B,), or (1,) if one number stands for all batch entries.

    Raises:
        ArgumentError: the lengths are not integers of at least 0 in one dimension.
    """
    tensor = torch.atleast_1d(torch.as_tensor(lengths))
    integral = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if not integral or tensor.dim() != 1 or any_set(tensor < 0, when_tracing=False):
        raise ArgumentError(
            argument,
            expected="integers of at least 0, one per batch entry: shape (B,)",
            received=f"{tensor.dtype} {tuple(tensor.shape)}"
            + (f" with a minimum of {tensor.min()}" if integral and tensor.numel() else ""),
            remedy="From a Boolean mask of real tokens (B, T): mask.sum(-1).",
        )
    return tensor.long()


def batch_of(tensor: Tensor) -> int | None:
    """Return the number of batch entries that a tensor distinguishes; None if it has one row for all."""
    return None if len(tensor) == 1 else len(tensor)
