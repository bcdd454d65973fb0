"""Masks as values: what each says a query sees, how they combine, and every form they lower to.

A mask says what is **kept**: True = attend. Query i sees key j, where i counts from the alignment:
``align="end"`` puts the last query at the last key (as with a cache), ``align="start"`` the first
query at the first key. With as many queries as keys the two are the same and none need be named.

    Causal() & Window(256) & Documents(ids)     every combination by & and | is a mask again
    Sinks(4) | Window(256)

Nearly all of them lower to intervals: per query, at most two runs of keys.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.lazy import any_set, lazy
from heedful.modes import eager

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Align = Literal["start", "end"] | None
MOST_RUNS = 2  # sinks and a window; what needs more becomes a dense mask


class Grid(NamedTuple):
    """The queries and keys that a mask is lowered for; `shift` is the position of query 0 among the keys."""

    batch: int
    Tq: int
    Tk: int
    shift: int
    device: torch.device

    def positions(self) -> Tensor:
        """The position i of each query among the keys: int64 (1, Tq)."""
        return torch.arange(self.shift, self.shift + self.Tq, device=self.device).unsqueeze(0)


class Mask(ABC):
    """What each query may see. Combine with ``&`` (both allow it) and ``|`` (either does).

    A subclass states itself twice, and the tests hold the two equal: entry by entry (`sees`) and as
    runs of keys (`runs`, None where there are none).
    """

    align: Align = None
    positional: bool = False  # whether it matters where among the keys a query stands
    constant: bool = (
        False  # whether numbers are all it holds, so that equal masks lower to equal runs for ever
    )

    @abstractmethod
    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        """Boolean, of the index tensors' common shape: in batch entry b and head h, does query q see key k?"""

    @abstractmethod
    def runs(self, grid: Grid) -> Intervals | None:
        """The same as runs of keys; None where the mask has no such form."""

    def check(self, grid: Grid) -> None:  # noqa: B027 - most masks fit every grid
        """Raise ArgumentError where the mask's own tensors do not fit the grid."""

    def check_batch(self, grid: Grid) -> None:
        """Raise ArgumentError where the mask is for another number of batch entries."""
        if self.batch not in (None, grid.batch):
            raise ArgumentError(
                "mask",
                expected=f"a mask for {grid.batch} batch entries, or one for all",
                received=f"{type(self).__name__} for {self.batch}",
                remedy="Give the mask one row for each batch entry of query, key and value.",
            )

    def __and__(self, other: Mask) -> Mask:
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def grid(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Grid:
        """The grid of Tq queries and Tk keys (as many by default), by this mask's alignment.

        Raises:
            ArgumentError: the alignment is needed and missing, or the mask is for other sizes.
        """
        Tk = Tq if Tk is None else Tk
        if self.positional and self.align is None and Tq != Tk:
            raise ArgumentError(
                "mask",
                expected=f"an alignment, because {Tq} queries meet {Tk} keys",
                received=f"{self!r} without one",
                remedy='Say align="end" if the last query stands at the last key (a cache), '
                'or align="start" if the first query stands at the first key.',
            )
        shift = Tk - Tq if self.align == "end" else 0
        grid = Grid(batch or self.batch or 1, Tq, Tk, shift, torch.device(device))
        self.check_batch(grid)
        self.check(grid)
        return grid

    def intervals(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Intervals | None:
        """At most two runs of keys per query, in O(T) memory; None where only a dense mask can say it."""
        return self.intervals_on(self.grid(Tq, Tk, batch=batch, device=device))

    def intervals_on(self, grid: Grid) -> Intervals | None:
        """`intervals` for a grid already checked."""
        if self.constant and eager():
            return _remembered(self, grid)
        return self._few_runs(grid)

    def _few_runs(self, grid: Grid) -> Intervals | None:
        intervals = self.runs(grid)
        return intervals if intervals is not None and intervals.runs <= MOST_RUNS else None

    def dense(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """The Boolean tensor (B or 1, Hq or 1, Tq, Tk), True = attend: `attn_mask` of PyTorch's SDPA."""
        return self.dense_on(self.grid(Tq, Tk, batch=batch, device=device))

    def dense_on(self, grid: Grid) -> Tensor:
        """`dense` for a grid already checked."""
        shared = self.batch is None
        b = torch.arange(1 if shared else grid.batch, device=grid.device).view(-1, 1, 1, 1)
        h = torch.arange(self.heads or 1, device=grid.device).view(1, -1, 1, 1)
        q = torch.arange(grid.Tq, device=grid.device).view(1, 1, -1, 1)
        k = torch.arange(grid.Tk, device=grid.device).view(1, 1, 1, -1)
        return self.sees(b, h, q, k, grid).expand(len(b), h.shape[1], grid.Tq, grid.Tk)

    @property
    def batch(self) -> int | None:
        """How many batch entries the mask tells apart; None: it treats all alike."""
        return None

    @property
    def heads(self) -> int | None:
        """How many query heads the mask tells apart; None: it treats all alike."""
        return None

    def mask_function(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """A function of index tensors (batch, head, query, key).

        FlexAttention takes it as `mask_mod`, transformers as its mask function.
        """
        grid = self.grid(Tq, Tk, batch=batch, device=device)
        return lambda b, h, q, k: self.sees(b, h, q, k, grid)

    def block_mask(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> BlockMask:
        """FlexAttention's block mask; from the intervals where there are any, which costs no T x T."""
        grid = self.grid(Tq, Tk, batch=batch, device=device)
        intervals = self.intervals_on(grid)
        if intervals is not None:
            return intervals.block_mask()
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(
            lambda b, h, q, k: self.sees(b, h, q, k, grid),
            *(self.batch, self.heads, grid.Tq, grid.Tk),
            device=str(grid.device),
        )

    def sdpa_arguments(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> dict[str, Tensor | bool]:
        """What to pass to PyTorch's SDPA: ``is_causal=True`` where that says it, else ``attn_mask=…``."""
        grid = self.grid(Tq, Tk, batch=batch, device=device)
        if self.is_plain_causal(grid):
            return {"is_causal": True}
        return {"attn_mask": self.dense_on(grid)}

    def is_plain_causal(self, grid: Grid) -> bool:
        """Whether PyTorch's ``is_causal=True``, which aligns to the start, says the same."""
        return False


@dataclass(frozen=True)
class Causal(Mask):
    """Query i sees key j if j <= i."""

    align: Align = None
    positional = True
    constant = True

    def __post_init__(self) -> None:
        _check_align(self.align)

    def sees(self, b, h, q, k, grid):
        return k <= q + grid.shift

    def runs(self, grid):
        i = grid.positions()
        return Intervals.single(torch.zeros_like(i), i + 1, grid.Tk)

    def is_plain_causal(self, grid):
        return grid.shift == 0


@dataclass(frozen=True)
class Window(Mask):
    """Query i sees key j if i - size < j <= i: its own and the newest before it (transformers' `sliding_window`)."""

    size: int
    align: Align = None
    positional = True
    constant = True

    def __post_init__(self) -> None:
        _check_count("size", self.size, least=1)
        _check_align(self.align)

    def sees(self, b, h, q, k, grid):
        i = q + grid.shift
        return (i - self.size < k) & (k <= i)

    def runs(self, grid):
        i = grid.positions()
        return Intervals.single(i - self.size + 1, i + 1, grid.Tk)


@dataclass(frozen=True)
class Band(Mask):
    """Query i sees key j if i - before <= j <= i + after (flash-attn's `window_size`)."""

    before: int
    after: int
    align: Align = None
    positional = True
    constant = True

    def __post_init__(self) -> None:
        _check_count("before", self.before, least=0)
        _check_count("after", self.after, least=0)
        _check_align(self.align)

    def sees(self, b, h, q, k, grid):
        i = q + grid.shift
        return (i - self.before <= k) & (k <= i + self.after)

    def runs(self, grid):
        i = grid.positions()
        return Intervals.single(i - self.before, i + self.after + 1, grid.Tk)


@dataclass(frozen=True, eq=False)
class _Lengths(Mask):
    """A mask that knows a number of keys for each batch entry."""

    lengths: Tensor | Sequence[int] | int

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _integers("lengths", self.lengths))

    @property
    def counts(self) -> Tensor:
        """The lengths as int64 (B,), or (1,) for all."""
        return cast(Tensor, self.lengths)

    @property
    def batch(self):
        return _batch_of(self.counts)

    def check(self, grid):
        if any_set(self.counts > grid.Tk, when_tracing=False):
            raise ArgumentError(
                "mask",
                expected=f"lengths of at most {grid.Tk}, the number of keys",
                received=f"{type(self).__name__} with a length of {int(self.counts.max())}",
                remedy="Lengths count keys, those of a cache included.",
            )

    def length(self, b: Tensor) -> Tensor:
        """The length of each batch index."""
        counts = self.counts.to(b.device)
        return counts[torch.zeros_like(b) if len(counts) == 1 else b]


@dataclass(frozen=True, eq=False)
class Prefix(_Lengths):
    """Query i sees key j if j <= i or j < length: a prefix that all see, causal after it (prefix LM).

    Args:
        lengths: the prefix of each batch entry: integers (B,), or one integer for all.
    """

    align: Align = None
    positional = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_align(self.align)

    def sees(self, b, h, q, k, grid):
        return (k <= q + grid.shift) | (k < self.length(b))

    def runs(self, grid):
        i = grid.positions()
        stop = torch.maximum(i + 1, self.counts.to(grid.device).unsqueeze(-1))
        return Intervals.single(torch.zeros_like(stop), stop, grid.Tk)


@dataclass(frozen=True, eq=False)
class Padding(_Lengths):
    """Every query sees key j if j is one of its batch entry's real tokens.

    Args:
        lengths: how many tokens of each batch entry are real: integers (B,).
        side: where the padding stands: ``"right"`` (tokens first) or ``"left"``.
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

    def sees(self, b, h, q, k, grid):
        return k < self.length(b) if self.side == "right" else k >= grid.Tk - self.length(b)

    def runs(self, grid):
        length = self.counts.to(grid.device).unsqueeze(-1).expand(-1, grid.Tq)
        if self.side == "right":
            return Intervals.single(torch.zeros_like(length), length, grid.Tk)
        return Intervals.single(grid.Tk - length, torch.full_like(length, grid.Tk), grid.Tk)

    def cumulative_lengths(self) -> Tensor:
        """Where each entry starts once the padding is out: int32 (B + 1,), for variable-length kernels."""
        return torch.nn.functional.pad(self.counts.cumsum(0, dtype=torch.int32), (1, 0))


@dataclass(frozen=True, eq=False)
class Documents(Mask):
    """Query i sees key j if both belong to one document: packed sequences.

    Args:
        ids: the document of each key, non-decreasing along the tokens: integers (B, Tk) or (Tk,).
    """

    ids: Tensor
    align: Align = None
    positional = True

    def __post_init__(self) -> None:
        ids = self.ids if isinstance(self.ids, Tensor) else torch.as_tensor(self.ids)
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
        _check_align(self.align)

    @property
    def batch(self):
        return _batch_of(self.ids)

    def check(self, grid):
        if self.ids.shape[-1] != grid.Tk:
            raise ArgumentError(
                "mask",
                expected=f"the document of each of the {grid.Tk} keys",
                received=f"Documents of {self.ids.shape[-1]} ids",
                remedy="ids covers the keys, those of a cache included.",
            )

    def sees(self, b, h, q, k, grid):
        ids = self.ids.to(grid.device)
        row = torch.zeros_like(b) if len(ids) == 1 else b
        i = q + grid.shift
        inside = (i >= 0) & (i < grid.Tk)
        return inside & (ids[row, i.clamp(0, max(grid.Tk - 1, 0))] == ids[row, k])

    def runs(self, grid):
        ids = self.ids.to(grid.device).contiguous()
        first, last = (torch.searchsorted(ids, ids, right=right) for right in (False, True))
        i = grid.positions().squeeze(0)
        inside = (i >= 0) & (i < grid.Tk)
        first, last = (edge[:, i.clamp(0, max(grid.Tk - 1, 0))] * inside for edge in (first, last))
        return Intervals.single(first, last, grid.Tk)

    def cumulative_lengths(self) -> Tensor:
        """Where each document starts in the flattened batch: int32 (documents + 1,)."""
        opens = torch.ones_like(self.ids, dtype=torch.bool)
        opens[:, 1:] = self.ids.diff() != 0
        starts = opens.flatten().nonzero().flatten()
        return torch.cat([starts, starts.new_tensor([self.ids.numel()])]).int()


@dataclass(frozen=True)
class Sinks(Mask):
    """Every query sees key j if j < count: the first tokens, which attention leans on (``Sinks(4) | Window(256)``)."""

    count: int
    constant = True

    def __post_init__(self) -> None:
        _check_count("count", self.count, least=0)

    def sees(self, b, h, q, k, grid):
        return k < self.count

    def runs(self, grid):
        start = torch.zeros(1, grid.Tq, dtype=torch.int32, device=grid.device)
        return Intervals.single(start, torch.full_like(start, self.count), grid.Tk)


@dataclass(frozen=True, eq=False)
class Runs(Mask):
    """Query i sees the keys of its own runs: what other masks lower to, given outright.

    Args:
        lowered: the runs of each query, as `Mask.intervals` gives them; for as many queries and keys as it was made.
    """

    lowered: Intervals = field(repr=False)

    @property
    def batch(self):
        return _batch_of(self.lowered.start)

    def check(self, grid):
        sizes = self.lowered.start.shape[1], self.lowered.Tk
        if sizes != (grid.Tq, grid.Tk):
            raise ArgumentError(
                "mask",
                expected=f"runs for {grid.Tq} queries and {grid.Tk} keys",
                received=f"Runs for {sizes[0]} queries and {sizes[1]} keys",
                remedy="Lower a mask for the sizes of this call: mask.intervals(Tq, Tk).",
            )

    def sees(self, b, h, q, k, grid):
        return self.lowered.mask_function()(b, h, q, k)

    def runs(self, grid):
        return self.lowered


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Query i sees key j if the Boolean tensor says True.

    Args:
        tensor: Boolean, broadcastable to (B, Hq, Tq, Tk).
    """

    tensor: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.tensor, Tensor) or self.tensor.dtype != torch.bool:
            received = getattr(self.tensor, "dtype", type(self.tensor).__name__)
            raise ArgumentError(
                "tensor",
                expected="a Boolean tensor, True = attend",
                received=str(received),
                remedy="Pass numbers that are added to the scores as bias=…; "
                "of 0 and 1 make a mask by .bool().",
            )
        if not 2 <= self.tensor.dim() <= 4:
            raise ArgumentError(
                "tensor",
                expected="2 to 4 dimensions, broadcastable to (B, Hq, Tq, Tk)",
                received=f"shape {tuple(self.tensor.shape)}",
                remedy="A mask of keys alone (B, Tk) becomes (B, 1, 1, Tk), "
                "or better Padding(lengths).",
            )

    @classmethod
    def from_hidden(cls, hidden: Tensor) -> Dense:
        """From the other polarity, True = hide: `attn_mask` of `nn.MultiheadAttention`, `masked_fill` masks."""
        return cls(~hidden)

    @lazy
    def _four(self) -> Tensor:
        return self.tensor[(None,) * (4 - self.tensor.dim())]

    @property
    def batch(self):
        return _batch_of(self._four)

    @property
    def heads(self):
        return None if self._four.shape[1] == 1 else self._four.shape[1]

    def check(self, grid):
        if any(
            size not in (1, T)
            for size, T in zip(self._four.shape[2:], (grid.Tq, grid.Tk), strict=True)
        ):
            raise ArgumentError(
                "mask",
                expected=f"a tensor broadcastable to (B, Hq, {grid.Tq}, {grid.Tk})",
                received=f"Dense of shape {tuple(self.tensor.shape)}",
                remedy="Slice it to the queries and keys of this call: tensor[..., :Tq, :Tk].",
            )

    def sees(self, b, h, q, k, grid):
        full = self._four.to(grid.device)
        at = (
            torch.zeros_like(i) if n == 1 else i
            for i, n in zip((b, h, q, k), full.shape, strict=True)
        )
        return full[tuple(at)]

    def dense_on(self, grid):
        return self._four.to(grid.device).expand(-1, -1, grid.Tq, grid.Tk)

    def runs(self, grid):
        return None


@dataclass(frozen=True, repr=False)
class _Pair(Mask):
    """Two masks combined. An unset alignment takes its partner's; two different ones are an error."""

    left: Mask
    right: Mask
    align: Align = field(init=False)
    positional: bool = field(init=False)
    constant: bool = field(init=False)
    symbol: ClassVar[str]
    combine: ClassVar[Callable]

    def __post_init__(self) -> None:
        left, right = self.left, self.right
        if left.align and right.align and left.align != right.align:
            raise ArgumentError(
                "mask",
                expected="one alignment for both masks",
                received=f"{left!r} and {right!r}",
                remedy="Name the same alignment in both, or in one of them only.",
            )
        object.__setattr__(self, "align", left.align or right.align)
        object.__setattr__(self, "positional", left.positional or right.positional)
        object.__setattr__(self, "constant", left.constant and right.constant)

    def __repr__(self) -> str:
        return f"({self.left!r} {self.symbol} {self.right!r})"

    @property
    def batch(self):
        return self.left.batch or self.right.batch

    @property
    def heads(self):
        return self.left.heads or self.right.heads

    def check(self, grid):
        for mask in (self.left, self.right):
            mask.check_batch(grid)
            mask.check(grid)

    def sees(self, b, h, q, k, grid):
        return self.combine(self.left.sees(b, h, q, k, grid), self.right.sees(b, h, q, k, grid))

    def dense_on(self, grid):
        return self.combine(self.left.dense_on(grid), self.right.dense_on(grid))

    def runs(self, grid):
        left, right = self.left.runs(grid), self.right.runs(grid)
        return None if left is None or right is None else self.combine(left, right)


class And(_Pair):
    """What both masks show: ``left & right``."""

    symbol, combine = "&", staticmethod(operator.and_)


class Or(_Pair):
    """What either mask shows: ``left | right``."""

    symbol, combine = "|", staticmethod(operator.or_)


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # a backward pass may use them yet
def _remembered(mask: Mask, grid: Grid) -> Intervals | None:
    """The runs of a constant mask, made once for each grid: no model changes its mask from layer to layer."""
    return mask._few_runs(grid)


def _check_align(align: Align) -> None:
    if align not in (None, "start", "end"):
        raise ArgumentError(
            "align",
            expected='"start", "end" or None',
            received=repr(align),
            remedy='"end" puts the last query at the last key, "start" the first at the first.',
        )


def _check_count(argument: str, count: int, *, least: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise ArgumentError(
            argument,
            expected=f"an integer of at least {least}",
            received=repr(count),
            remedy="Count in keys.",
        )


def _integers(argument: str, lengths: Tensor | Sequence[int] | int) -> Tensor:
    """Lengths as int64 (B,) or (1,)."""
    tensor = torch.atleast_1d(torch.as_tensor(lengths))
    counts = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if not counts or tensor.dim() != 1 or any_set(tensor < 0, when_tracing=False):
        raise ArgumentError(
            argument,
            expected="integers of at least 0, one a batch entry: shape (B,)",
            received=f"{tensor.dtype} {tuple(tensor.shape)}"
            + (f" with a least value of {tensor.min()}" if counts and tensor.numel() else ""),
            remedy="From a Boolean mask of real tokens (B, T): mask.sum(-1).",
        )
    return tensor.long()


def _batch_of(tensor: Tensor) -> int | None:
    return None if len(tensor) == 1 else len(tensor)
