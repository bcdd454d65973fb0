"""Tables with a row for each position: of rotary angles, in the forms in which attentions take them, or of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from heedful.conformance.calling import names

ROTARY_BASE = 10_000.0

Table = Callable[[int, int, torch.dtype], Any]


@dataclass(frozen=True, eq=False)
class PositionTable:
    """A constant of a call with a row for each position: a function of (B, T, dtype).

    Attributes:
        make: Returns the rows of the first T positions.
        axis: The axis of the rows, counted from the last one.
    """

    make: Table
    axis: int = -2

    def __call__(self, B: int, T: int, dtype: torch.dtype) -> Any:
        return self.make(B, T, dtype)

    def part(self, B: int, start: int, stop: int, dtype: torch.dtype) -> Any:
        """Return the rows from `start` up to `stop`, while earlier tokens are in a cache."""

        def rows(table: Tensor) -> Tensor:
            return table.narrow(self.axis, start, stop - start)

        return pytree.tree_map(rows, self.make(B, stop, dtype))


def rotary_table(name: str, B: int, T: int, D: int, dtype: torch.dtype) -> Any:
    """Return the rotary table of positions 0 … T − 1 that an argument of a conventional name takes.

    Tables are complex as in Llama's own code, cosines or sines of each angle once, (T, D / 2), or twice, (T, D), or,
    in transformers, both, each (B, T, D).
    """
    angles = _angles(T, D)
    if name == names.COMPLEX_ROTATIONS:
        turns = torch.polar(torch.ones_like(angles), angles)
        return turns if dtype == torch.float64 else turns.to(torch.complex64)
    if name not in names.HALF_TABLES:
        angles = torch.cat([angles, angles], dim=-1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    if name == names.COSINES_AND_SINES:
        return cos.expand(B, T, D), sin.expand(B, T, D)
    if name in names.COSINES:
        return cos
    return sin if name in names.SINES else (cos, sin)


def rotary_tables(D: int) -> Iterator[PositionTable]:
    """Yield tables in every form: complex, real pairs, or cosines and sines."""

    def complex_table(B: int, T: int, dtype: torch.dtype) -> Tensor:
        return rotary_table(names.COMPLEX_ROTATIONS, B, T, D, dtype)

    def real_table(B: int, T: int, dtype: torch.dtype) -> Tensor:
        return torch.view_as_real(complex_table(B, T, dtype)).to(dtype)

    yield PositionTable(complex_table)
    yield PositionTable(real_table, axis=-3)
    for leading in ((), (1,), (1, 1)):
        for twice in (True, False):
            yield PositionTable(_pair(D, leading, twice))
    yield PositionTable(lambda B, T, dtype: torch.cat([_angles(T, D)] * 2, dim=-1).to(dtype))
    yield PositionTable(lambda B, T, dtype: torch.stack(_pair(D, (), True)(B, T, dtype)))


def halves_of_tables(names_of_halves: Sequence[str], D: int) -> Iterator[dict[str, PositionTable]]:
    """Yield cosines and sines that are arguments of their own, by name, in every form: all of one form.

    A table has each angle once or twice, and its axis of positions may have axes around it for sequences and heads.
    """
    for twice, axes in product((True, False), ((), (0,), (0, 2), (0, 1))):
        yield {
            name: PositionTable(
                _half(name in names.SINES, D, axes, twice), axis=-3 if 2 in axes else -2
            )
            for name in names_of_halves
        }


def _half(is_sine: bool, D: int, axes: Sequence[int], twice: bool) -> Table:
    """Return a function that makes cosines or sines, with further axes of size 1 at some places."""

    def table(B: int, T: int, dtype: torch.dtype) -> Tensor:
        half: Tensor = _pair(D, (), twice)(B, T, dtype)[is_sine]
        for axis in axes:
            half = half.unsqueeze(axis)
        return half

    return table


def _pair(D: int, leading: tuple[int, ...], twice: bool) -> Table:
    """Return a function that makes cosines and sines with leading axes of size 1, each angle once or twice."""

    def table(B: int, T: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        angles = torch.cat([_angles(T, D)] * (2 if twice else 1), dim=-1)
        angles = angles.view(*leading, *angles.shape)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    return table


def _angles(T: int, D: int) -> Tensor:
    """Return the angle of each position and pair of features, (T, D / 2), in float64."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    return torch.arange(T)[:, None] * frequencies
