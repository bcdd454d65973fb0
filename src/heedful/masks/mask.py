"""The base class of masks, and what its operators make: combinations of masks, and masks of Boolean tensors."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.lazy import lazy
from heedful.masks.checks import (
    batch_of,
    check_dense_layout,
    check_key_ranges,
    check_no_array,
    shown_argument,
)
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

    def __repr__(self) -> str:
        """Return the mask as one writes it, without arguments that have their defaults."""
        shown = []
        for argument in fields(self) if is_dataclass(self) else ():
            value = getattr(self, argument.name)
            if argument.default is MISSING:
                shown.append(shown_argument(value))
            elif value != argument.default:
                shown.append(f"{argument.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    # The algebra: a Boolean tensor stands for the mask of its entries, on either side.

    __array_ufunc__ = None  # NumPy leaves `array & mask` to the mask, which says what to do

    def __and__(self, other: Mask | Bool[Tensor, " ..."]) -> Mask:
        mask = _as_operand(other)
        return NotImplemented if mask is None else And(self, mask)

    def __rand__(self, other: Bool[Tensor, " ..."]) -> Mask:
        mask = _as_operand(other)
        return NotImplemented if mask is None else And(mask, self)

    def __or__(self, other: Mask | Bool[Tensor, " ..."]) -> Mask:
        mask = _as_operand(other)
        return NotImplemented if mask is None else Or(self, mask)

    def __ror__(self, other: Bool[Tensor, " ..."]) -> Mask:
        mask = _as_operand(other)
        return NotImplemented if mask is None else Or(mask, self)

    def __invert__(self) -> NoReturn:
        raise ArgumentError(
            "mask",
            expected="what each query sees",
            received=f"~{self!r}",
            remedy="Masks have no complement. Name the mask of what is kept, such as Causal() or Band(before, after); "
            "Dense.from_hidden(tensor) takes a tensor of what is hidden, and Dense(~mask.dense(Tq, Tk)) hides "
            "what a mask shows.",
        )

    def __bool__(self) -> NoReturn:
        raise ArgumentError(
            "mask",
            expected="masks combined by & and |",
            received=f"the truth value of {self!r}, which `and`, `or`, `not` and `if` ask for",
            remedy="Write Causal() & Window(256); to see whether there is a mask, write `mask is not None`.",
        )

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


@dataclass(frozen=True, eq=False, repr=False)
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

    tensor: Bool[Tensor, " ..."]

    def __post_init__(self) -> None:
        check_no_array("tensor", self.tensor)
        if not isinstance(self.tensor, Tensor) or self.tensor.dtype != torch.bool:
            received = getattr(self.tensor, "dtype", type(self.tensor).__name__)
            raise ArgumentError(
                "tensor",
                expected="a Boolean tensor, True = attend",
                received=str(received),
                remedy="Pass numbers that are added to the scores as bias=…; "
                "convert a mask of 0 and 1 by .bool().",
            )
        check_dense_layout("tensor", self.tensor)
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


def _as_operand(other: object) -> Mask | None:
    """Return a mask, or the mask that a Boolean tensor stands for; None for anything else.

    Raises:
        ArgumentError: the other operand is an array, a list, or a tensor that is not Boolean.
    """
    if isinstance(other, Mask):
        return other
    check_no_array("mask", other)
    if not isinstance(other, Tensor):
        return None
    return Dense(other)
