"""The base class of masks, and the two combinations that its operators build."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.masks.checks import check_key_ranges
from heedful.masks.grid import Align, Grid
from heedful.masks.picture import picture_of
from heedful.modes import eager

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MAX_KEY_RANGES: int = 2  # sinks and a window; a mask that needs more becomes dense


class Mask(ABC):
    """The keys that each query may see. Combine masks with ``&`` (both allow a key) and ``|`` (at least one does).

    A subclass defines itself twice, entry by entry (`sees`) and as key ranges (`key_ranges`, None if there are
    none). The tests check that the two agree.

    Attributes:
        align: where the queries stand among the keys; None if not given.
        positional: whether it matters where among the keys a query stands.
        constant: whether the mask holds only numbers, so that equal masks always lower to equal ranges.

    Examples:
        >>> from heedful import Causal, Window
        >>> (Causal() & Window(2)).dense(3)[0, 0].int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """

    align: Align = None
    positional: bool = False
    constant: bool = False

    @abstractmethod
    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        """Return whether query q sees key k in batch entry b and head h: Boolean, of the indices' common shape."""

    @abstractmethod
    def key_ranges(self, grid: Grid) -> Intervals | None:
        """Return the mask as key ranges, any number of them; None if it has no such form."""

    @property
    def batch(self) -> int | None:
        """The number of batch entries that the mask distinguishes; None if it treats all alike."""
        return None

    @property
    def heads(self) -> int | None:
        """The number of query heads that the mask distinguishes; None if it treats all alike."""
        return None

    def is_plain_causal(self, grid: Grid) -> bool:
        """Check whether the mask equals PyTorch's ``is_causal=True``, which aligns to the start."""
        return False

    def check(self, grid: Grid) -> None:  # noqa: B027 - most masks fit every grid
        """Raise ArgumentError if the mask's own tensors do not fit the grid."""

    def check_batch(self, grid: Grid) -> None:
        """Raise ArgumentError if the mask is for another number of batch entries."""
        if self.batch not in (None, grid.batch):
            raise ArgumentError(
                "mask",
                expected=f"a mask for {grid.batch} batch entries, or one for all",
                received=f"{type(self).__name__} for {self.batch}",
                remedy="Give the mask one row for each batch entry of query, key and value.",
            )

    def own_sizes(self) -> tuple[int, int] | None:
        """Return the numbers of queries and keys that the mask's own tensors are for; None if it fits any."""
        return None

    def telling_tokens(self) -> int:
        """Return how many tokens it takes to see what the mask does."""
        return 12

    def _repr_html_(self) -> str:
        """Return a small picture of the mask, for a notebook."""
        Tq, Tk = self.own_sizes() or (self.telling_tokens(),) * 2
        function = self.mask_function(Tq, Tk)
        return picture_of(repr(self), (self.batch or 1, self.heads or 1, Tq, Tk), function)

    def __and__(self, other: Mask) -> Mask:
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    # The forms that a mask lowers to

    def grid(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Grid:
        """Return the grid of Tq queries and Tk keys, aligned as this mask says.

        Args:
            Tq: the number of queries.
            Tk: the number of keys; None: as many as queries.
            batch: the number of batch entries; None: as many as the mask distinguishes.
            device: where the mask's tensors are built.

        Raises:
            ArgumentError: the alignment is needed and missing, or the mask is for other sizes.
        """
        Tk = Tq if Tk is None else Tk
        if self.positional and self.align is None and Tq != Tk:
            raise ArgumentError(
                "mask",
                expected=f"an alignment, because {Tq} queries meet {Tk} keys",
                received=f"{self!r} without one",
                remedy='Pass align="end" if the last query stands at the last key (a cache), '
                'or align="start" if the first query stands at the first key.',
            )
        shift = Tk - Tq if self.align == "end" else 0
        if batch is None:
            batch = 1 if self.batch is None else self.batch
        grid = Grid(batch, Tq, Tk, shift, torch.device(device))
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
        """Return at most two key ranges per query, in O(T) memory; None if only a dense mask can express them.

        The arguments and errors are those of `grid`. The tensors are the caller's own.
        """
        intervals = self.intervals_on(self.grid(Tq, Tk, batch=batch, device=device))
        return None if intervals is None else intervals.clone()

    def intervals_on(self, grid: Grid) -> Intervals | None:
        """Return `intervals` for a grid that has been checked. Other calls share the tensors: only read them."""
        if self.constant and eager():
            return _cached_intervals(self, grid)
        return self._few_key_ranges(grid)

    def _few_key_ranges(self, grid: Grid) -> Intervals | None:
        intervals = self.key_ranges(grid)
        if intervals is None:
            return None
        check_key_ranges(self, intervals, grid)
        return None if intervals.ranges > MAX_KEY_RANGES else intervals

    def dense(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Bool[Tensor, "B Hq Tq Tk"]:
        """Return the Boolean tensor (B or 1, Hq or 1, Tq, Tk), True = attend: `attn_mask` of PyTorch's SDPA.

        The arguments and errors are those of `grid`. The tensor is not one from which the mask is made.
        """
        return self.dense_on(self.grid(Tq, Tk, batch=batch, device=device))

    def dense_on(self, grid: Grid) -> Bool[Tensor, "B Hq Tq Tk"]:
        """Return `dense` for a grid that has been checked."""
        shared = self.batch is None
        b = torch.arange(1 if shared else grid.batch, device=grid.device).view(-1, 1, 1, 1)
        heads = 1 if self.heads is None else self.heads
        h = torch.arange(heads, device=grid.device).view(1, -1, 1, 1)
        q = torch.arange(grid.Tq, device=grid.device).view(1, 1, -1, 1)
        k = torch.arange(grid.Tk, device=grid.device).view(1, 1, 1, -1)
        return self.sees(b, h, q, k, grid).expand(len(b), h.shape[1], grid.Tq, grid.Tk)

    def mask_function(
        self,
        Tq: int,
        Tk: int | None = None,
        *,
        batch: int | None = None,
        device: torch.device | str = "cpu",
    ) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return a function of index tensors (batch, head, query, key).

        FlexAttention takes it as `mask_mod`, transformers as its mask function. The arguments and errors are
        those of `grid`.
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
        """Build FlexAttention's block mask, from the intervals if there are any, without a T × T tensor.

        The arguments and errors are those of `grid`.
        """
        intervals = self.intervals(Tq, Tk, batch=batch, device=device)
        if intervals is not None:
            return intervals.block_mask()
        from torch.nn.attention.flex_attention import create_block_mask

        grid = self.grid(Tq, Tk, batch=batch, device=device)
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
        """Return the arguments for PyTorch's SDPA: ``is_causal=True`` if that is the mask, else ``attn_mask=…``.

        The arguments and errors are those of `grid`.
        """
        grid = self.grid(Tq, Tk, batch=batch, device=device)
        if self.is_plain_causal(grid):
            return {"is_causal": True}
        return {"attn_mask": self.dense(Tq, Tk, batch=batch, device=device)}


@dataclass(frozen=True, repr=False)
class _Combination(Mask):
    """Two masks combined by an operator. An unset alignment takes its partner's; two different ones are an error."""

    left: Mask
    right: Mask
    align: Align = field(init=False)
    positional: bool = field(init=False)
    constant: bool = field(init=False)
    symbol: ClassVar[str]
    combine: ClassVar[Callable[[Any, Any], Any]]  # of two tensors, or of two Intervals

    def __post_init__(self) -> None:
        left, right = self.left, self.right
        if left.align and right.align and left.align != right.align:
            raise ArgumentError(
                "mask",
                expected="one alignment for both masks",
                received=f"{left!r} and {right!r}",
                remedy="Name the same alignment in both, or in only one of them.",
            )
        object.__setattr__(self, "align", left.align or right.align)
        object.__setattr__(self, "positional", left.positional or right.positional)
        object.__setattr__(self, "constant", left.constant and right.constant)

    def __repr__(self) -> str:
        return f"({self.left!r} {self.symbol} {self.right!r})"

    @property
    def batch(self) -> int | None:
        return self.right.batch if self.left.batch is None else self.left.batch

    @property
    def heads(self) -> int | None:
        return self.right.heads if self.left.heads is None else self.left.heads

    def own_sizes(self) -> tuple[int, int] | None:
        return self.left.own_sizes() or self.right.own_sizes()

    def telling_tokens(self) -> int:
        return max(self.left.telling_tokens(), self.right.telling_tokens())

    def check(self, grid: Grid) -> None:
        for mask in (self.left, self.right):
            mask.check_batch(grid)
            mask.check(grid)

    def sees(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor, grid: Grid) -> Tensor:
        return self.combine(self.left.sees(b, h, q, k, grid), self.right.sees(b, h, q, k, grid))

    def dense_on(self, grid: Grid) -> Bool[Tensor, "B Hq Tq Tk"]:
        return self.combine(self.left.dense_on(grid), self.right.dense_on(grid))

    def key_ranges(self, grid: Grid) -> Intervals | None:
        left, right = self.left.key_ranges(grid), self.right.key_ranges(grid)
        return None if left is None or right is None else self.combine(left, right)


class And(_Combination):
    """The keys that both masks show: ``left & right``."""

    symbol: ClassVar[str] = "&"
    combine: ClassVar[Callable[[Any, Any], Any]] = staticmethod(operator.and_)


class Or(_Combination):
    """The keys that at least one mask shows: ``left | right``."""

    symbol: ClassVar[str] = "|"
    combine: ClassVar[Callable[[Any, Any], Any]] = staticmethod(operator.or_)


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # a later backward pass may need the tensors
def _cached_intervals(mask: Mask, grid: Grid) -> Intervals | None:
    """Return the intervals of a constant mask, built once per grid: models use the same mask in every layer."""
    return mask._few_key_ranges(grid)
