"""Arguments of an example for other sizes: for other numbers of sequences and of tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from heedful.observation.leaves import leaves_of, with_changed_leaves


@dataclass(frozen=True)
class Axes:
    """The sizes by which the axes of an example's tensors are recognized.

    Attributes:
        B: The batch size; None if no axis varies with it.
        T: The number of tokens; None if no axis varies with it.
        batch_first: Whether an axis of both sizes at the same time is that of the batch if it is the first one.
        anywhere: Whether an axis other than the first one may be that of the batch.
        distances: Whether an axis of 2 T − 1 entries has one for each distance from 1 − T to T − 1.
        known: The letters of the axes of some shapes, where sizes do not tell.
    """

    B: int | None
    T: int | None
    batch_first: bool = False
    anywhere: bool = False
    distances: bool = True
    known: Mapping[tuple[int, ...], str] = field(default_factory=dict)

    def of(self, shape: Sequence[int]) -> str:
        """Return a letter for each axis of a shape: B, T, D for distances, or a blank for one that does not vary.

        The batch has one axis, so that a later axis of the same size is another one.
        """
        if tuple(shape) in self.known:
            return self.known[tuple(shape)]
        letters: list[str] = []
        for axis, size in enumerate(shape):
            is_batch = size == self.B and "B" not in letters and (self.anywhere or axis == 0)
            is_tokens = size == self.T and not (is_batch and self.batch_first and axis == 0)
            of_distances = self.distances and self.T is not None and size == 2 * self.T - 1
            letters.append("T" if is_tokens else "B" if is_batch else "D" if of_distances else " ")
        return "".join(letters)


def axes_of(sizes: tuple[int, int], first: bool) -> Iterator[Axes]:
    """Yield the ways to recognize axes of a batch size and a number of tokens; axes of size 1 never vary.

    Args:
        sizes: The batch size and the number of tokens.
        first: Whether the first axis of the tokens is that of the batch, so that it is likely to be in other arguments.
    """
    B, T = (None if size == 1 else size for size in sizes)
    for distances, anywhere in product((True, False), (not first, first)):
        yield Axes(B, T, anywhere=anywhere, distances=distances)
        if B is not None and B == T:
            yield Axes(B, T, batch_first=True, anywhere=anywhere, distances=distances)


def telling_sequence(arguments: Mapping[str, Any], axes: Axes) -> int:
    """Return the sequence of an example of which masks or lengths hide the most, or else the first one.

    Only arguments about something other than the tokens count, such as the lengths of a second sequence: without such
    a part, nothing would show whether it is hidden.
    """
    for value in arguments.values():
        if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex():
            continue
        letters = axes.of(value.shape)
        if letters == "B" and value.dtype != torch.bool and int(value.max()) != axes.T:
            return int(value.argmin())
        is_mask = value.dtype == torch.bool and value.dim() > 1
        if letters[:1] == "B" and "T" not in letters and is_mask:
            kept = value.flatten(1).double().mean(1)
            return int((kept - 0.5).abs().argmin())
    return 0


@dataclass(frozen=True, eq=False)
class Resized:
    """An argument of an example for other sizes: a function of (B, T, dtype).

    Every sequence gets what one of the example has, and fewer tokens get what the first ones have, or the entries of
    their distances.

    Attributes:
        value: The argument; tuples, lists and dicts are resized entry by entry, and what is no tensor is copied.
        axes: How its axes are recognized.
        sequence: The index of the sequence whose part of the argument every sequence gets.
    """

    value: Any
    axes: Axes
    sequence: int = 0

    def __call__(self, B: int, T: int, dtype: torch.dtype) -> Any:
        if are_lengths(self.value, (self.axes.B, self.axes.T)):  # without padding
            return torch.full((B,), T) if isinstance(self.value, Tensor) else [T] * B

        def resize(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return copy.deepcopy(value)
            for axis, letter in enumerate(self.axes.of(value.shape)):
                if letter == "B":
                    value = value.narrow(axis, self.sequence, 1).repeat_interleave(B, axis)
                elif letter == "T":
                    value = value.index_select(
                        axis, torch.arange(T).clamp(max=value.shape[axis] - 1)
                    )
                elif letter == "D":
                    value = value.narrow(axis, value.shape[axis] // 2 - (T - 1), 2 * T - 1)
            return value.to(dtype) if value.is_floating_point() else value.clone()

        return mapped(resize, self.value)

    @property
    def has_part_per_sequence(self) -> bool:
        """Whether the argument is one tensor, with a part for each sequence on its first axis."""
        return isinstance(self.value, Tensor) and self.axes.of(self.value.shape)[:1] == "B"

    def part(self, B: int, start: int, stop: int, dtype: torch.dtype) -> Any:
        """Return the argument for the tokens from `start` up to `stop`, while earlier ones are in a cache.

        A mask with two axes of tokens keeps the columns of the earlier ones; all else belongs to the new ones.
        """

        def cut(original: Any, value: Any) -> Any:
            if isinstance(original, Tensor) and "T" in (letters := self.axes.of(original.shape)):
                axis = letters.index("T")
                return value.narrow(axis, start, stop - start)
            return value

        originals = dict(leaves_of(self.value))
        whole = self(B, stop, dtype)
        return with_changed_leaves(whole, lambda path, leaf: cut(originals.get(path), leaf))

    @property
    def is_of_pairs(self) -> bool:
        """True if the value has a number for each pair of tokens, such as the links of a graph."""
        return isinstance(self.value, Tensor) and self.axes.of(self.value.shape).count("T") > 1

    @property
    def is_mask_of_keys(self) -> bool:
        """True if it is Boolean, or 1 and 0, with one axis of tokens."""
        if not isinstance(self.value, Tensor) or self.axes.of(self.value.shape).count("T") != 1:
            return False
        return is_binary(self.value)

    @property
    def most_tokens(self) -> int | None:
        """The number of tokens for which the example has entries; None if they are all equal, or none vary."""
        if self.axes.T is None:
            return None
        tensors = _tensors(self.value)
        return self.axes.T if any(self._differs(tensor) for tensor in tensors) else None

    def _differs(self, tensor: Tensor) -> bool:
        """Check whether the entries of a tensor differ along an axis of tokens or of distances."""
        axes = [axis for axis, letter in enumerate(self.axes.of(tensor.shape)) if letter in "TD"]
        return any(not torch.equal(tensor, tensor.narrow(a, 0, 1).expand_as(tensor)) for a in axes)


def is_binary(value: Tensor) -> bool:
    """Check whether a tensor is Boolean, or has no other entries than 1 and 0."""
    return value.dtype == torch.bool or bool(((value == 0) | (value == 1)).all())


def adds_up(value: Tensor, T: int) -> bool:
    """Check whether a tensor holds the lengths of several sequences of T tokens in all, or where they begin and end."""
    if value.dim() != 1 or value.dtype not in (torch.int32, torch.int64) or len(value) < 2:
        return False
    if value[0] == 0:
        return len(value) > 2 and int(value[-1]) == T and bool((value.diff() > 0).all())
    return int(value.sum()) == T and bool((value > 0).all())


def are_lengths(value: Any, sizes: tuple[int | None, int | None]) -> bool:
    """Check whether a value holds a whole number for each sequence: how many of its T tokens are real."""
    B, T = sizes
    if isinstance(value, Tensor) and value.dim() == 1 and value.dtype in (torch.int32, torch.int64):
        value = value.tolist()
    if not isinstance(value, list | tuple) or len(value) != B or T is None or B == 1:
        return False
    return all(type(it) is int and 0 < it <= T for it in value) and max(value) == T


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to the leaves of lists, dictionaries and other holders of tensors."""
    return with_changed_leaves(value, lambda path, leaf: function(leaf))


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for _, leaf in leaves_of(value) if isinstance(leaf, Tensor)]


def copied(value: Any) -> Any:
    """Return a copy of an argument, on the CPU; what cannot be copied is returned itself."""

    def copied_entry(entry: Any) -> Any:
        if isinstance(entry, Tensor):
            return entry.detach().cpu().clone()
        try:
            return copy.deepcopy(entry)
        except Exception:  # noqa: BLE001 - a foreign class may raise anything in __deepcopy__
            return entry

    return mapped(copied_entry, value)
