"""Maps of blocks of weights: smaller maps, the sums of their blocks, and the scale of their colors."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.drawing import usual_maximum
from heedful.summaries.request import Cell


def counts_of_cells(cell: Cell, length: tuple[int, int]) -> Tensor:
    """Return how many weights each block of a map has: (rows, columns), of all queries and keys."""
    sides = [
        (total - torch.arange(0, total, size)).clamp(max=size)
        for size, total in zip(cell, length, strict=True)
    ]
    return (sides[0].unsqueeze(1) * sides[1]).double()


def sums_of_cells(means: Tensor, cell: Cell, length: tuple[int, int]) -> Tensor:
    """Return the sum of the weights in each block of a map (…, rows, columns) of means."""
    return means * counts_of_cells(cell, length)


def pooled(
    means: Tensor, maxima: Tensor, cell: Cell, length: tuple[int, int], side: int
) -> tuple[Tensor, Tensor, Cell]:
    """Return mean and maximum of larger blocks, at most `side` in each direction, and the size of such a block."""
    factors = [
        -(-total // size) for total, size in zip(means.shape[-2:], (side, side), strict=True)
    ]
    if factors == [1, 1]:
        return means, maxima, cell
    larger = Cell(cell.queries * factors[0], cell.keys * factors[1])
    sums = _blocks(sums_of_cells(means.double(), cell, length), factors).sum(dim=(-3, -1))
    maxima = _blocks(maxima, factors).amax(dim=(-3, -1))
    return sums / counts_of_cells(larger, length), maxima, larger


def _blocks(cells: Tensor, factors: list[int]) -> Tensor:
    """Return the cells (…, rows, columns) as (…, rows, factor, columns, factor), filled up with 0."""
    rows, columns = cells.shape[-2:]
    filled = torch.nn.functional.pad(cells, (0, -columns % factors[1], 0, -rows % factors[0]))
    return filled.unflatten(-1, (-1, factors[1])).unflatten(-3, (-1, factors[0]))


def color_limits(maps: Tensor, *, single: bool) -> Tensor:
    """Return, for each map (…, rows, columns), the value of the strongest color, greater than 0.

    Args:
        maps: The values, none negative.
        single: Whether each cell is one weight. Then it is the largest; of blocks, a few of which are far larger than
            all others, it is the 99th percentile of those above 0.
    """
    flat = maps.flatten(-2).double()
    if single:
        limits = flat.amax(dim=-1)
        return limits.masked_fill(limits <= 0, 1.0)
    limits = [usual_maximum(it) for it in flat.reshape(-1, flat.shape[-1]).numpy()]
    return torch.tensor(limits, dtype=torch.double).view(flat.shape[:-1])
