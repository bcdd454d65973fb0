"""Runs of keys: what a structured mask comes down to, in O(T) numbers instead of T x T."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@dataclass(frozen=True, eq=False)
class Intervals:
    """The keys that each query sees, as at most R runs: key j is seen if start <= j < stop in one of them.

    Attributes:
        start: int32 (B or 1, Tq, R), the first key of each run.
        stop: int32 (B or 1, Tq, R), one past the last key; an empty run has ``stop == start``.
        Tk: the number of keys; ``0 <= start <= stop <= Tk``.

    The runs of a query ascend, are disjoint and do not touch; empty ones come last.
    """

    start: Tensor
    stop: Tensor
    Tk: int

    @classmethod
    def single(cls, start: Tensor, stop: Tensor, Tk: int) -> Intervals:
        """One run a query, from start and stop (B or 1, Tq) of any integers; what lies outside 0…Tk is cut."""
        start, stop = torch.broadcast_tensors(start.clamp(0, Tk), stop.clamp(0, Tk))
        stop = torch.maximum(start, stop)
        return cls(start.int().unsqueeze(-1), stop.int().unsqueeze(-1), Tk)

    @property
    def runs(self) -> int:
        """R: the most runs that a query may have."""
        return self.start.shape[-1]

    def __and__(self, other: Intervals) -> Intervals:
        """The keys that both see: every run of one cut by every run of the other."""
        start = torch.maximum(self.start.unsqueeze(-1), other.start.unsqueeze(-2)).flatten(-2)
        stop = torch.minimum(self.stop.unsqueeze(-1), other.stop.unsqueeze(-2)).flatten(-2)
        return Intervals(start, torch.maximum(start, stop), self.Tk)._tidied()

    def __or__(self, other: Intervals) -> Intervals:
        """The keys that either sees: the runs of both."""
        start = _side_by_side(self.start, other.start)
        stop = _side_by_side(self.stop, other.stop)
        return Intervals(start, stop, self.Tk)._tidied()

    def _tidied(self) -> Intervals:
        """The same keys in runs that ascend, are disjoint and do not touch, with no column that is all empty."""
        if self.runs == 1:
            return self
        empty = self.stop <= self.start
        start, order = self.start.masked_fill(empty, self.Tk).sort(dim=-1, stable=True)
        stop = self.stop.masked_fill(empty, 0).gather(-1, order)
        reached = stop.cummax(dim=-1).values
        opens = torch.ones_like(start, dtype=torch.bool)
        opens[..., 1:] = (start[..., 1:] > reached[..., :-1]) & (stop[..., 1:] > 0)
        run = opens.cumsum(dim=-1) - 1
        count = run.shape[-1]
        if run.numel() and not torch.compiler.is_compiling():  # which knows no values
            count = int(run.max()) + 1
        first = torch.full_like(start[..., :count], self.Tk).scatter_reduce(-1, run, start, "amin")
        last = torch.zeros_like(first).scatter_reduce(-1, run, stop, "amax")
        return Intervals(first, torch.maximum(first, last), self.Tk)

    def dense(self) -> Tensor:
        """The same as a Boolean tensor (B or 1, Tq, Tk); True: the query sees the key."""
        return self.keys(0, self.Tk)

    def keys(self, first: int, last: int) -> Tensor:
        """The columns first…last-1 of the dense mask: Boolean (B or 1, Tq, last - first)."""
        j = torch.arange(first, last, device=self.start.device, dtype=torch.int32)
        seen = torch.zeros((), dtype=torch.bool, device=j.device)
        for start, stop in zip(self.start.unbind(-1), self.stop.unbind(-1), strict=True):
            seen = seen | ((j >= start.unsqueeze(-1)) & (j < stop.unsqueeze(-1)))
        return seen

    def pairs(self) -> Tensor:
        """How many (query, key) pairs are seen in each batch entry: int64 (B or 1,)."""
        return (self.stop - self.start).sum(dim=(-2, -1))

    def empty_rows(self) -> Tensor:
        """The queries that see no key: Boolean (B or 1, Tq)."""
        return (self.stop <= self.start).all(dim=-1)

    def unseen_keys(self) -> Tensor:
        """The keys that no query sees: Boolean (B or 1, Tk)."""
        edges = torch.zeros(
            len(self.start), self.Tk + 1, dtype=torch.int32, device=self.start.device
        )
        ones = torch.ones_like(self.start).flatten(1)
        edges.scatter_add_(1, self.start.flatten(1).long(), ones)
        edges.scatter_add_(1, self.stop.flatten(1).long(), -ones)
        return edges.cumsum(dim=1)[:, : self.Tk] == 0

    def block_mask(self, block: int = 128) -> BlockMask:
        """FlexAttention's block mask, from the runs alone: O(Tq · Tk / block) instead of O(Tq · Tk)."""
        from torch.nn.attention.flex_attention import BlockMask

        Tq = self.start.shape[1]
        edge = torch.arange(0, self.Tk, block, device=self.start.device, dtype=torch.int32)
        covered = (
            torch.minimum(self.stop.unsqueeze(-1), edge + block)
            - torch.maximum(self.start.unsqueeze(-1), edge)
        ).clamp(min=0)
        covered = covered.sum(dim=2)  # (B, Tq, key blocks)
        blocks = torch.nn.functional.pad(covered, (0, 0, 0, -Tq % block)).unflatten(1, (-1, block))
        full = (blocks == block).all(dim=2)
        partial = (blocks > 0).any(dim=2) & ~full
        return BlockMask.from_kv_blocks(
            *_ordered(partial),
            *_ordered(full),
            BLOCK_SIZE=block,
            mask_mod=self.mask_function(),
            seq_lengths=(Tq, self.Tk),
        )

    def mask_function(self):
        """A function of index tensors (batch, head, query, key), as FlexAttention and transformers call it."""
        start, stop = self.start, self.stop
        shared = len(start) == 1

        def sees(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            row = start.new_zeros(()) if shared else b
            seen = (k >= start[row, q, 0]) & (k < stop[row, q, 0])
            for r in range(1, start.shape[-1]):
                seen = seen | ((k >= start[row, q, r]) & (k < stop[row, q, r]))
            return seen

        return sees


def _side_by_side(mine: Tensor, theirs: Tensor) -> Tensor:
    """The runs of both, along the last dimension; a batch of one serves any batch."""
    B = max(len(mine), len(theirs))
    return torch.cat([mine.expand(B, -1, -1), theirs.expand(B, -1, -1)], dim=-1)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block has, and their indices, present ones first (int32, one head)."""
    indices = blocks.int().argsort(dim=-1, descending=True, stable=True).int()
    return blocks.sum(dim=-1, dtype=torch.int32).unsqueeze(1), indices.unsqueeze(1)
