"""PyTorch's masks in the forms that the native kernel takes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.masks import MAX_KEY_RANGES
from heedful.problem import AttentionProblem

_HIDDEN: float = -1e29  # a value of the mask that leaves no weight beside any other score
_MIN_QUERIES_TO_READ_MASK: int = (
    64  # from here on, skipping hidden blocks saves more than reading the mask costs
)


class KernelMask(NamedTuple):
    """A mask as the native kernel takes it.

    Attributes:
        kind: as in `CallKind.mask`.
        start, stop: the key ranges, int32 (B or 1, Tq, 2), or None.
        shown: Boolean (B or 1, Hq or 1, Tq or 1, Tk or 1), True = attend, or None.
        bias: the bias of the scores, float32 of a shape like that of `shown`, or None.
        has_hidden_rows: whether a mask of numbers hides every key from some query. It is known only for masks that
            were read.
    """

    kind: str = "none"
    start: Tensor | None = None
    stop: Tensor | None = None
    shown: Tensor | None = None
    bias: Tensor | None = None
    has_hidden_rows: bool = False


def lower_mask(problem: AttentionProblem, *, may_read: bool = True) -> KernelMask:
    """Return the mask of a problem that was made of PyTorch's arguments.

    Args:
        problem: the problem. Its mask is causal or dense, or a bias of 2 to 4 dimensions stands for it.
        may_read: whether the values of mask tensors are known.
    """
    if problem.bias is not None:
        bias = problem.bias[(None,) * (4 - problem.bias.dim())]
        differentiated = torch.is_grad_enabled() and bias.requires_grad
        if may_read and not differentiated and bias.numel():
            return _read_numbers(bias, problem)
        return KernelMask("tensor", bias=bias.float())
    if problem.mask is None:
        return KernelMask()
    if problem.intervals is not None:
        start, stop = problem.intervals.start, problem.intervals.stop
        return KernelMask("causal", start.contiguous(), stop.contiguous())
    shown = problem.dense_mask
    assert shown is not None
    shown = _without_copies(shown)
    if may_read and _may_be_key_ranges(shown, problem):
        ranges = _find_key_ranges(shown, problem)
        if ranges is not None:
            return KernelMask("key ranges", *ranges)
    return KernelMask("tensor", shown=shown)


def _without_copies(mask: Tensor) -> Tensor:
    """Return the mask with size 1 along the dimensions in which it was expanded."""
    for dimension, stride in enumerate(mask.stride()):
        if stride == 0 and mask.shape[dimension] > 1:
            mask = mask.narrow(dimension, 0, 1)
    return mask


def _read_numbers(bias: Tensor, problem: AttentionProblem) -> KernelMask:
    """Convert an additive mask into key ranges if possible, or into a bias otherwise."""
    bias = _without_copies(bias)
    row_max = bias.amax(dim=-1)
    has_hidden_rows = row_max.amin().item() == -math.inf
    # A query whose whole mask is finite gives weights to its keys, however low the numbers are.
    has_low_rows = bool(((row_max <= _HIDDEN) & (row_max > -math.inf)).any())
    if not has_low_rows and _may_be_key_ranges(bias, problem):
        hidden = bias.bool()
        if bias.masked_fill(~hidden, -math.inf).amax() <= _HIDDEN:
            ranges = _find_key_ranges(~hidden, problem)
            if ranges is not None:
                return KernelMask("key ranges", *ranges, has_hidden_rows=has_hidden_rows)
    return KernelMask("tensor", bias=bias.float(), has_hidden_rows=has_hidden_rows)


def _may_be_key_ranges(mask: Tensor, problem: AttentionProblem) -> bool:
    """Check whether a mask is the same for all heads and large enough that reading it pays off."""
    _, _, _, Tq, Tk, _, _ = problem.sizes
    one_head = mask.shape[1] == 1 and mask.shape[3] == Tk
    return one_head and Tq >= _MIN_QUERIES_TO_READ_MASK


def _find_key_ranges(shown: Tensor, problem: AttentionProblem) -> tuple[Tensor, Tensor] | None:
    """Return the ranges of visible keys as start and stop, or None if a query has more than two.

    Args:
        shown: Boolean (B or 1, 1, Tq or 1, Tk).
        problem: the problem.

    Returns:
        Two tensors int32 (B or 1, Tq, 2): a query has at most `MAX_KEY_RANGES` ranges.
    """
    visible = shown.squeeze(1)
    bordered = torch.nn.functional.pad(visible, (1, 1))
    edges = bordered[..., 1:] != bordered[..., :-1]
    row, key = edges.flatten(0, 1).nonzero(as_tuple=True)
    row, opening, closing = row[::2].contiguous(), key[::2], key[1::2]
    index = torch.arange(len(row)) - torch.searchsorted(row, row)  # 0 for the first range of a row
    if (index >= MAX_KEY_RANGES).any():
        return None
    B, Tq, _ = visible.shape
    start, stop = torch.zeros(2, B * Tq, MAX_KEY_RANGES, dtype=torch.int32)
    start[row, index], stop[row, index] = opening.int(), closing.int()
    queries = problem.sizes.Tq
    start, stop = (
        edges.view(B, Tq, MAX_KEY_RANGES).expand(-1, queries, -1) for edges in (start, stop)
    )
    return start.contiguous(), stop.contiguous()
