"""Masks that depend only on positions: causal, windows, bands and sinks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.intervals import Intervals
from heedful.masks.checks import MAX_KEYS, check_align, check_count
from heedful.masks.grid import Align, Grid
from heedful.masks.mask import Mask


@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """Query i sees key j if j <= i (Vaswani et al. 2017, arXiv 1706.03762, §3.2.3).

    Args:
        align: where the queries stand among the keys: ``"end"`` (the last query at the last key, as with a
            cache) or ``"start"``. Required only if there are not as many queries as keys.

    Raises:
        ArgumentError: the alignment is not one of these.

    Examples:
        >>> Causal().dense(3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """

    align: Align = None
    positional = True
    constant = True

    def __post_init__(self) -> None:
        check_align(self.align)

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        return k <= q + grid.shift

    def key_ranges(self, grid: Grid) -> Intervals:
        i = grid.positions()
        return Intervals.single(torch.zeros_like(i), i + 1, grid.Tk)

    def is_plain_causal(self, grid: Grid) -> bool:
        return grid.shift == 0


@dataclass(frozen=True, repr=False)
class Window(Mask):
    """Query i sees key j if i − size < j <= i (Mistral 7B, arXiv 2310.06825, §2: sliding window attention).

    Args:
        size: the number of keys that a query sees, its own included; transformers' `sliding_window`.
        align: as in `Causal`.

    Raises:
        ArgumentError: the size is not an integer of at least 1, or the alignment is unknown.

    Examples:
        >>> Window(2).dense(3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """

    size: int
    align: Align = None
    positional = True
    constant = True

    def __post_init__(self) -> None:
        check_count("size", self.size, minimum=1)
        check_align(self.align)

    def telling_tokens(self) -> int:
        return max(2 * min(self.size, MAX_KEYS), super().telling_tokens())

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        back = q + grid.shift - k
        return (back >= 0) & (back < min(self.size, MAX_KEYS))

    def key_ranges(self, grid: Grid) -> Intervals:
        i = grid.positions()
        return Intervals.single(i - min(self.size, MAX_KEYS) + 1, i + 1, grid.Tk)


@dataclass(frozen=True, repr=False)
class Band(Mask):
    """Query i sees key j if i − before <= j <= i + after (Longformer, arXiv 2004.05150, §3.1).

    Args:
        before: the number of earlier keys that a query sees; with `after`, flash-attn's `window_size`.
        after: the number of later keys that a query sees.
        align: as in `Causal`.

    Raises:
        ArgumentError: a number is not an integer of at least 0, or the alignment is unknown.

    Examples:
        >>> Band(1, 1).dense(3)[0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 1],
                [0, 1, 1]], dtype=torch.int32)
    """

    before: int
    after: int
    align: Align = None
    positional = True
    constant = True

    def __post_init__(self) -> None:
        check_count("before", self.before, minimum=0)
        check_count("after", self.after, minimum=0)
        check_align(self.align)

    def telling_tokens(self) -> int:
        return max(2 * min(self.before + self.after + 1, MAX_KEYS), super().telling_tokens())

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        i = q + grid.shift
        return (i - k <= min(self.before, MAX_KEYS)) & (k - i <= min(self.after, MAX_KEYS))

    def key_ranges(self, grid: Grid) -> Intervals:
        i = grid.positions()
        first, last = i - min(self.before, MAX_KEYS), i + min(self.after, MAX_KEYS)
        return Intervals.single(first, last + 1, grid.Tk)


@dataclass(frozen=True, repr=False)
class Sinks(Mask):
    """Every query sees key j if j < count: attention sinks (StreamingLLM, arXiv 2309.17453, §3.2).

    Sinks are combined with a window: ``Causal() & (Sinks(4) | Window(256))``.

    Args:
        count: the number of first keys that all queries see.

    Raises:
        ArgumentError: the count is not an integer of at least 0.

    Examples:
        >>> (Causal() & (Sinks(1) | Window(2))).dense(4)[0, 0].int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [1, 1, 1, 0],
                [1, 0, 1, 1]], dtype=torch.int32)
    """

    count: int
    constant = True

    def __post_init__(self) -> None:
        check_count("count", self.count, minimum=0)

    def telling_tokens(self) -> int:
        return max(min(self.count, MAX_KEYS) + 8, super().telling_tokens())

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        return k < min(self.count, MAX_KEYS)

    def key_ranges(self, grid: Grid) -> Intervals:
        start = torch.zeros(1, grid.Tq, dtype=torch.int32, device=grid.device)
        return Intervals.single(start, torch.full_like(start, min(self.count, MAX_KEYS)), grid.Tk)
