"""Masks that depend on the sequences of a batch: prefixes, padding and packed documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Int, Int32, Int64
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.masks.checks import as_integers, as_lengths, batch_of, check_align
from heedful.masks.grid import Align, Grid
from heedful.masks.mask import Mask
from heedful.modes import any_set, values_known


@dataclass(frozen=True, eq=False, repr=False)
class _Lengths(Mask):
    """A mask that holds a number of keys for each batch entry."""

    lengths: Int[Tensor, " B"] | Sequence[int] | int

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", as_lengths("lengths", self.lengths))

    @property
    def counts(self) -> Int64[Tensor, " B"]:
        """The lengths as int64 (B,), or (1,) if one number stands for all."""
        return torch.atleast_1d(cast(Tensor, self.lengths))

    @property
    def batch(self) -> int | None:
        lengths = cast(Tensor, self.lengths)
        return len(lengths) if lengths.dim() else None

    def check(self, grid: Grid) -> None:
        if any_set(self.counts > grid.Tk, when_tracing=False):
            raise ArgumentError(
                "mask",
                expected=f"lengths of at most {grid.Tk}, the number of keys",
                received=f"{type(self).__name__} with a length of {int(self.counts.max())}",
                remedy="Lengths count keys, including those of a cache.",
            )

    def telling_tokens(self) -> int:
        longest = int(self.counts.max()) if values_known(self.counts) and self.counts.numel() else 0
        return max(longest, super().telling_tokens())

    def length(self, b: Tensor) -> Tensor:
        """Return the length of each batch index."""
        counts = self.counts.to(b.device)
        return counts[torch.zeros_like(b) if len(counts) == 1 else b]


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(_Lengths):
    """Query i sees key j if j <= i or j < length: a prefix LM (Raffel et al. 2020, arXiv 1910.10683, §3.2.1).

    Args:
        lengths: the prefix of each batch entry: integers (B,), or one integer for all.
        align: as in `Causal`.

    Raises:
        ArgumentError: the lengths are not integers of at least 0, or the alignment is unknown.

    Examples:
        >>> Prefix(2).dense(3)[0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """

    align: Align = None
    positional = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_align(self.align)

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        return (k <= q + grid.shift) | (k < self.length(b))

    def key_ranges(self, grid: Grid) -> Intervals:
        i = grid.positions()
        stop = torch.maximum(i + 1, self.counts.to(grid.device).unsqueeze(-1))
        return Intervals.single(torch.zeros_like(stop), stop, grid.Tk)


@dataclass(frozen=True, eq=False, repr=False)
class Padding(_Lengths):
    """Every query sees key j if j is a real token of its batch entry: the `attention_mask` of transformers.

    Args:
        lengths: the number of real tokens of each batch entry: integers (B,), or one integer for all.
        side: where the padding stands: ``"right"`` (tokens first) or ``"left"``.

    Raises:
        ArgumentError: the lengths are not integers of at least 0, or the side is unknown.

    Examples:
        >>> Padding([2, 3]).dense(3)[:, 0].int()
        tensor([[[1, 1, 0],
                 [1, 1, 0],
                 [1, 1, 0]],
        <BLANKLINE>
                [[1, 1, 1],
                 [1, 1, 1],
                 [1, 1, 1]]], dtype=torch.int32)
    """

    side: Literal["right", "left"] = "right"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side not in ("right", "left"):
            raise ArgumentError(
                "side",
                expected='"right" or "left"',
                received=repr(self.side),
                remedy="The side is where the padding stands, not the tokens.",
            )

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        return k < self.length(b) if self.side == "right" else k >= grid.Tk - self.length(b)

    def key_ranges(self, grid: Grid) -> Intervals:
        length = self.counts.to(grid.device).unsqueeze(-1).expand(-1, grid.Tq)
        if self.side == "right":
            return Intervals.single(torch.zeros_like(length), length, grid.Tk)
        return Intervals.single(grid.Tk - length, torch.full_like(length, grid.Tk), grid.Tk)

    def cumulative_lengths(self) -> Int32[Tensor, " starts"]:
        """Return where each batch entry starts once the padding is removed: int32 (B + 1,).

        This is `cu_seqlens` of variable-length kernels.

        Examples:
            >>> Padding([3, 0, 2]).cumulative_lengths()
            tensor([0, 3, 3, 5], dtype=torch.int32)
        """
        return torch.nn.functional.pad(self.counts.cumsum(0, dtype=torch.int32), (1, 0))


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Mask):
    """Query i sees key j if both belong to the same document: packed sequences (Krell et al. 2021, arXiv 2107.02027).

    Args:
        ids: the document of each key, non-decreasing along the tokens: integers (B, Tk) or (Tk,).
        align: as in `Causal`.

    Raises:
        ArgumentError: the ids are not non-decreasing integers, or the alignment is unknown.

    Examples:
        >>> Documents(torch.tensor([0, 0, 1])).dense(3)[0, 0].int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """

    ids: Int[Tensor, "B Tk"] | Int[Tensor, " Tk"]
    align: Align = None
    positional = True

    def __post_init__(self) -> None:
        ids = as_integers("ids", self.ids)
        if (
            ids.is_floating_point()
            or ids.dim() not in (1, 2)
            or any_set(ids.diff() < 0, when_tracing=False)
        ):
            raise ArgumentError(
                "ids",
                expected="non-decreasing integers (B, Tk) or (Tk,)",
                received=f"{ids.dtype} {tuple(ids.shape)}"
                + ("" if ids.is_floating_point() else " with a later token of an earlier document"),
                remedy="Number the documents in the order in which they were packed.",
            )
        object.__setattr__(self, "ids", torch.atleast_2d(ids).long())
        check_align(self.align)

    @property
    def batch(self) -> int | None:
        return batch_of(self.ids)

    def own_sizes(self) -> tuple[int, int]:
        return self.ids.shape[-1], self.ids.shape[-1]

    def check(self, grid: Grid) -> None:
        if self.ids.shape[-1] != grid.Tk:
            raise ArgumentError(
                "mask",
                expected=f"the document of each of the {grid.Tk} keys",
                received=f"Documents of {self.ids.shape[-1]} ids",
                remedy="Pass one id per key, including those of a cache.",
            )

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        if grid.Tk == 0:  # no query has a document
            return (q < 0) & (k < 0)
        ids = self.ids.to(grid.device)
        row = torch.zeros_like(b) if len(ids) == 1 else b
        i = q + grid.shift
        inside = (i >= 0) & (i < grid.Tk)
        return inside & (ids[row, i.clamp(0, grid.Tk - 1)] == ids[row, k])

    def key_ranges(self, grid: Grid) -> Intervals:
        ids = self.ids.to(grid.device).contiguous()
        if grid.Tk == 0:  # no query has a document
            nothing = ids.new_zeros(len(ids), grid.Tq)
            return Intervals.single(nothing, nothing, 0)
        first, last = (torch.searchsorted(ids, ids, right=right) for right in (False, True))
        i = grid.positions().squeeze(0)
        inside = (i >= 0) & (i < grid.Tk)
        first, last = (edge[:, i.clamp(0, grid.Tk - 1)] * inside for edge in (first, last))
        return Intervals.single(first, last, grid.Tk)

    def cumulative_lengths(self) -> Int32[Tensor, " starts"]:
        """Return where each document starts in the flattened batch: int32 (documents + 1,).

        This is `cu_seqlens` of variable-length kernels.

        Examples:
            >>> Documents(torch.tensor([[0, 0, 1], [1, 1, 1]])).cumulative_lengths()
            tensor([0, 2, 3, 6], dtype=torch.int32)
        """
        opens = torch.ones_like(self.ids, dtype=torch.bool)
        opens[:, 1:] = self.ids.diff() != 0
        starts = opens.flatten().nonzero().flatten()
        return torch.cat([starts, starts.new_tensor([self.ids.numel()])]).int()
