"""Key ranges: the form that structured masks lower to, in O(T) numbers instead of T × T."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from heedful.modes import values_known
from heedful.shapes import times

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass(frozen=True, eq=False)
class Intervals:
    """The keys that each query sees, as at most R key ranges: a query sees key j if start <= j < stop in one of them.

    The ranges of a query are in ascending order, disjoint, and do not touch. Empty ranges come last.

    Attributes:
        start: int32 (B or 1, Tq, R), the first key of each range.
        stop: int32 (B or 1, Tq, R), one past the last key of each range; an empty range has ``stop == start``.
        Tk: the number of keys; ``0 <= start <= stop <= Tk``.

    Examples:
        >>> from heedful import Window
        >>> intervals = Window(2).intervals(3)
        >>> intervals.start.flatten().tolist(), intervals.stop.flatten().tolist()
        ([0, 0, 1], [1, 2, 3])
    """

    start: Int32[Tensor, "B Tq R"]
    stop: Int32[Tensor, "B Tq R"]
    Tk: int

    def __repr__(self) -> str:
        return f"Intervals(start and stop: {times(self.start.shape)}, {self.Tk} keys)"

    @classmethod
    def single(cls, start: Tensor, stop: Tensor, Tk: int) -> Intervals:
        """Return one range per query.

        Args:
            start: integers (B or 1, Tq), the first key of each range.
            stop: integers (B or 1, Tq), one past the last key.
            Tk: the number of keys. Ranges are clipped to 0 … Tk.
        """
        start, stop = torch.broadcast_tensors(start.clamp(0, Tk), stop.clamp(0, Tk))
        stop = torch.maximum(start, stop)
        return cls(start.int().unsqueeze(-1), stop.int().unsqueeze(-1), Tk)

    def _clipped(self) -> Intervals:
        """Return the same keys in ranges within 0 … Tk, for ranges that were made or changed elsewhere."""
        start, stop = self.start.clamp(0, self.Tk), self.stop.clamp(0, self.Tk)
        return Intervals(start, torch.maximum(start, stop), self.Tk)

    def clone(self) -> Intervals:
        """Return the same ranges in tensors of their own."""
        return Intervals(self.start.clone(), self.stop.clone(), self.Tk)

    def part(self, first_query: int, queries: int, first_key: int, keys: int) -> Intervals:
        """Return the ranges of some of the queries on some of the keys, which are counted from `first_key`."""
        rows = slice(first_query, first_query + queries)
        start = (self.start[:, rows] - first_key).clamp(0, keys)
        stop = (self.stop[:, rows] - first_key).clamp(0, keys)
        return Intervals(start, torch.maximum(start, stop), keys)._normalised()

    def rows(self, queries: Tensor) -> Intervals:
        """Return the ranges of some of the queries, whose indices are int64 (rows,)."""
        return Intervals(self.start[:, queries], self.stop[:, queries], self.Tk)

    def onto(self, keys: Tensor) -> Intervals:
        """Return the ranges on some of the keys, whose indices are int64 (keys,), ascending.

        The keys of a range stay neighbors among those that are left, so there are no more ranges than before.
        """
        places = keys.to(torch.int32).contiguous()
        start, stop = (
            torch.searchsorted(places, edge.contiguous(), out_int32=True)
            for edge in (self.start, self.stop)
        )
        return Intervals(start, stop, len(keys))._normalised()

    @property
    def ranges(self) -> int:
        """R, the maximum number of key ranges per query."""
        return self.start.shape[-1]

    def __and__(self, other: Intervals) -> Intervals:
        """Return the keys that both see: the intersection of every range with every range of the other."""
        start = torch.maximum(self.start.unsqueeze(-1), other.start.unsqueeze(-2)).flatten(-2)
        stop = torch.minimum(self.stop.unsqueeze(-1), other.stop.unsqueeze(-2)).flatten(-2)
        return Intervals(start, torch.maximum(start, stop), self.Tk)._normalised()

    def __or__(self, other: Intervals) -> Intervals:
        """Return the keys that at least one of the two sees."""
        start = _concatenate(self.start, other.start)
        stop = _concatenate(self.stop, other.stop)
        return Intervals(start, stop, self.Tk)._normalised()

    def _normalised(self) -> Intervals:
        """Return the same keys in ascending, disjoint ranges that do not touch, without columns of empty ranges."""
        if self.ranges == 1:
            return self
        empty = self.stop <= self.start
        start, order = self.start.masked_fill(empty, self.Tk).sort(dim=-1, stable=True)
        stop = self.stop.masked_fill(empty, 0).gather(-1, order)
        reached = stop.cummax(dim=-1).values
        opens = torch.ones_like(start, dtype=torch.bool)
        opens[..., 1:] = (start[..., 1:] > reached[..., :-1]) & (stop[..., 1:] > 0)
        merged = opens.cumsum(dim=-1) - 1  # the index of the range that each one becomes part of
        count = merged.shape[-1]
        if merged.numel() and values_known(merged):
            count = int(merged.max()) + 1
        first = torch.full_like(start[..., :count], self.Tk)
        first = first.scatter_reduce(-1, merged, start, "amin")
        last = torch.zeros_like(first).scatter_reduce(-1, merged, stop, "amax")
        return Intervals(first, torch.maximum(first, last), self.Tk)

    def dense(self) -> Bool[Tensor, "B Tq Tk"]:
        """Return the Boolean tensor (B or 1, Tq, Tk) that is True where the query sees the key."""
        return self.keys(0, self.Tk)

    def keys(self, first: int, last: int) -> Bool[Tensor, "B Tq keys"]:
        """Return columns first … last − 1 of the dense mask: Boolean (B or 1, Tq, last − first)."""
        j = torch.arange(first, last, device=self.start.device, dtype=torch.int32)
        seen = torch.zeros((), dtype=torch.bool, device=j.device)
        for start, stop in zip(self.start.unbind(-1), self.stop.unbind(-1), strict=True):
            seen = seen | ((j >= start.unsqueeze(-1)) & (j < stop.unsqueeze(-1)))
        return seen

    def pairs(self) -> Int64[Tensor, " B"]:
        """Return the number of visible (query, key) pairs of each batch entry: int64 (B or 1,)."""
        clipped = self._clipped()
        return (clipped.stop - clipped.start).sum(dim=(-2, -1))

    def empty_rows(self) -> Bool[Tensor, "B Tq"]:
        """Return which queries see no key: Boolean (B or 1, Tq)."""
        return (self.stop <= self.start).all(dim=-1)

    def queries_of_keys(self) -> Int32[Tensor, "B Tk"]:
        """Return how many queries see each key: int32 (B or 1, Tk)."""
        edges = torch.zeros(
            len(self.start), self.Tk + 1, dtype=torch.int32, device=self.start.device
        )
        clipped = self._clipped()
        ones = torch.ones_like(self.start).flatten(1)
        edges.scatter_add_(1, clipped.start.flatten(1).long(), ones)
        edges.scatter_add_(1, clipped.stop.flatten(1).long(), -ones)
        return edges.cumsum(dim=1, dtype=torch.int32)[:, : self.Tk]

    def unseen_keys(self) -> Bool[Tensor, "B Tk"]:
        """Return which keys no query sees: Boolean (B or 1, Tk)."""
        return self.queries_of_keys() == 0

    def block_mask(self, block: int = 128) -> BlockMask:
        """Build FlexAttention's block mask in O(Tq · Tk / block) instead of O(Tq · Tk)."""
        from torch.nn.attention.flex_attention import BlockMask

        clipped = self._clipped()
        Tq = self.start.shape[1]
        edge = torch.arange(0, self.Tk, block, device=self.start.device, dtype=torch.int32)
        covered = (
            torch.minimum(clipped.stop.unsqueeze(-1), edge + block)
            - torch.maximum(clipped.start.unsqueeze(-1), edge)
        ).clamp(min=0)
        covered = covered.sum(dim=2)  # (B, Tq, key blocks)
        blocks = torch.nn.functional.pad(covered, (0, 0, 0, -Tq % block)).unflatten(1, (-1, block))
        full = (blocks == block).all(dim=2)
        partial = (blocks > 0).any(dim=2) & ~full
        return BlockMask.from_kv_blocks(
            *_present_first(partial),
            *_present_first(full),
            BLOCK_SIZE=block,
            mask_mod=self.mask_function(),
            seq_lengths=(Tq, self.Tk),
        )

    def mask_function(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return a function of index tensors (batch, head, query, key), as FlexAttention and transformers call it."""
        start, stop = self.start, self.stop
        shared = len(start) == 1

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            row = start.new_zeros(()) if shared else b
            seen = (k >= start[row, q, 0]) & (k < stop[row, q, 0])
            for r in range(1, start.shape[-1]):
                seen = seen | ((k >= start[row, q, r]) & (k < stop[row, q, r]))
            return seen

        return sees


def _concatenate(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate the ranges of both along the last dimension. A batch of one is expanded to the other's size."""
    B = len(right) if len(left) == 1 else len(left)
    return torch.cat([left.expand(B, -1, -1), right.expand(B, -1, -1)], dim=-1)


def _present_first(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many key blocks each query block has, and all key block indices, present ones first (int32)."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True).int()
    return blocks.sum(dim=-1, dtype=torch.int32).unsqueeze(1), indices.unsqueeze(1)
