"""What is to be summarized: an attention problem without values, the statistics that are wanted, and their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.masks import Dense, Grid, KeyRanges, Mask
from heedful.problem import AttentionProblem

Region = Mask | tuple[int, int]


class Part(NamedTuple):
    """Some of all queries, or of all keys: those from `first` on.

    Attributes:
        first: the place of the first one among all.
        size: how many there are.
        total: how many there are in all.
    """

    first: int
    size: int
    total: int

    @property
    def last(self) -> int:
        """One past the place of the last one."""
        return self.first + self.size


class Cell(NamedTuple):
    """A cell of the pooled map: how many queries and keys it has."""

    queries: int
    keys: int


@dataclass(frozen=True, eq=False)
class SummaryRequest:
    """A request that has been checked.

    Attributes:
        problem: the queries and keys, which stand for the values, too; the mask and the bias are those of this part.
        lse: (B, Hq, Tq), the given normalizers; None: those of these keys.
        queries: the place of the queries among all.
        keys: the place of the keys among all.
        shift: the place of the first of these queries among these keys.
        for_each_query: whether entropy, largest weight and mean distance are wanted.
        for_each_key: whether the received mass is wanted.
        top_k: how many of each query's keys are wanted.
        cell: the size of a cell of the map; None: no map is wanted.
        regions: the names of the regions, and how many key ranges each has.
        ranges: the key ranges of all regions, one after the other; None: there are none.
    """

    problem: AttentionProblem
    lse: Tensor | None
    queries: Part
    keys: Part
    shift: int
    for_each_query: bool
    for_each_key: bool
    top_k: int
    cell: Cell | None
    regions: tuple[tuple[str, int], ...]
    ranges: Intervals | None

    @property
    def cell_and_offsets(self) -> list[int]:
        """The size of a cell, and the places of the first query and key in theirs; empty without a map."""
        if self.cell is None:
            return []
        offsets = self.queries.first % self.cell.queries, self.keys.first % self.cell.keys
        return [*self.cell, *offsets]


def make_request(
    query: Tensor,
    key: Tensor,
    mask: Mask | Tensor | None,
    *,
    bias: Tensor | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    lse: Tensor | None,
    for_each_query: bool,
    for_each_key: bool,
    top_k: int,
    pool: int | tuple[int, int] | None,
    regions: Mapping[str, Region] | None,
    queries: tuple[int, int] | None,
    keys: tuple[int, int] | None,
) -> SummaryRequest:
    """Check and lower the arguments of `summarize`, which describes them."""
    unmasked = AttentionProblem(query, key, key, None, None, scale, softcap, sinks)
    B, Hq, _, Tq, Tk, _, _ = unmasked.sizes
    query_part, key_part = _part("queries", queries, Tq), _part("keys", keys, Tk)
    whole = (query_part, key_part) == (Part(0, Tq, Tq), Part(0, Tk, Tk))
    mask = Dense(mask) if isinstance(mask, Tensor) else mask
    grid = Grid(B, query_part.total, key_part.total, 0, query.device)
    if isinstance(mask, Mask):
        grid = mask.grid(grid.Tq, grid.Tk, batch=B, device=query.device)
    if not whole:
        mask = _mask_of_part(mask, grid, query_part, key_part)
        bias = _bias_of_part(bias, (B, Hq, grid.Tq, grid.Tk), query_part, key_part)
    problem = AttentionProblem(query, key, key, mask, bias, scale, softcap, sinks)
    _check_lse(lse, problem)
    _check_top_k(top_k)
    named = {name: _ranges_of(name, region, grid) for name, region in (regions or {}).items()}
    lowered = [
        ranges.part(query_part.first, query_part.size, key_part.first, key_part.size)
        for ranges in named.values()
    ]
    return SummaryRequest(
        problem,
        lse,
        query_part,
        key_part,
        grid.shift + query_part.first - key_part.first,
        for_each_query,
        for_each_key,
        top_k,
        _cell(pool, query_part, key_part),
        tuple((name, ranges.ranges) for name, ranges in zip(named, lowered, strict=True)),
        _side_by_side(lowered) if lowered else None,
    )


def _part(name: str, place: tuple[int, int] | None, count: int) -> Part:
    part = Part(0, count, count) if place is None else Part(place[0], count, place[1])
    if not 0 <= part.first <= part.last <= part.total:
        raise ArgumentError(
            name,
            expected=f"(first, total) with 0 <= first and first + {count} <= total",
            received=repr(place),
            remedy=f"It says where these {count} {name} stand among all {name}; None: they are all.",
        )
    return part


def _mask_of_part(mask: Mask | None, grid: Grid, queries: Part, keys: Part) -> Mask | None:
    """Return what a mask of all queries and keys shows to these queries of these keys."""
    if not isinstance(mask, Mask):
        return mask
    intervals = mask.intervals_on(grid)
    if intervals is not None:
        return KeyRanges(intervals.part(queries.first, queries.size, keys.first, keys.size))
    return Dense(mask.dense_on(grid)[..., queries.first : queries.last, keys.first : keys.last])


def _bias_of_part(
    bias: Tensor | None, shape: tuple[int, int, int, int], queries: Part, keys: Part
) -> Tensor | None:
    """Return the part of a bias for all queries and keys."""
    if not isinstance(bias, Tensor) or bias.dim() > 4:
        return bias
    try:
        bias = bias.expand(shape)
    except RuntimeError as error:
        raise ArgumentError(
            "bias",
            expected=f"a shape that broadcasts to {shape}: all queries and keys, not only this part",
            received=f"shape {tuple(bias.shape)}",
            remedy="Use size 1 for a dimension that shares the bias.",
        ) from error
    return bias[..., queries.first : queries.last, keys.first : keys.last]


def _check_lse(lse: Tensor | None, problem: AttentionProblem) -> None:
    if lse is None:
        return
    query, shape = problem.query, tuple(problem.query.shape[:3])
    dtype = torch.promote_types(query.dtype, torch.float32)
    if (
        isinstance(lse, Tensor)
        and lse.dtype == dtype
        and tuple(lse.shape) == shape
        and lse.device == query.device
    ):
        return
    received = f"{lse.dtype} {tuple(lse.shape)} on {lse.device}" if isinstance(lse, Tensor) else lse
    raise ArgumentError(
        "lse",
        expected=f"{dtype} {shape} on {query.device}",
        received=str(received),
        remedy="attention(…, return_lse=True) returns it.",
    )


def _check_top_k(top_k: int) -> None:
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 0:
        raise ArgumentError(
            "top_k",
            expected="an integer of at least 0",
            received=repr(top_k),
            remedy="It is how many keys to find for each query.",
        )


def _cell(pool: int | tuple[int, int] | None, queries: Part, keys: Part) -> Cell | None:
    """Return the size of the cells of a map with so many rows and columns at most."""
    if pool is None:
        return None
    counts = pool if isinstance(pool, tuple) else (pool, pool)
    valid = [isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in counts]
    if len(counts) != 2 or not all(valid):
        raise ArgumentError(
            "pool",
            expected="a number of cells, or (rows, columns), each at least 1",
            received=repr(pool),
            remedy="pool=512 makes a map of at most 512 x 512 cells.",
        )
    rows, columns = counts
    return Cell(max(1, -(-queries.total // rows)), max(1, -(-keys.total // columns)))


def _ranges_of(name: str, region: Region, grid: Grid) -> Intervals:
    """Return a region's key ranges for all queries and keys, any number of them."""
    if isinstance(region, Mask):
        ranges = region.key_ranges(
            region.grid(grid.Tq, grid.Tk, batch=grid.batch, device=grid.device)
        )
        if ranges is not None:
            return ranges
        problem = f"{region!r}, which has no key ranges"
    elif isinstance(region, tuple) and len(region) == 2 and all(isinstance(x, int) for x in region):
        edges = torch.tensor(region, device=grid.device).view(2, 1, 1).expand(2, 1, grid.Tq)
        return Intervals.single(edges[0], edges[1], grid.Tk)
    else:
        problem = repr(region)
    raise ArgumentError(
        f"regions[{name!r}]",
        expected="a mask with key ranges, such as Sinks(4), Window(256) or Documents(ids), or (start, stop)",
        received=problem,
        remedy="A region is what a mask shows; several ranges are masks combined by |.",
    )


def _side_by_side(regions: list[Intervals]) -> Intervals:
    """Return the ranges of all regions, one after the other."""
    (B,) = torch.broadcast_shapes(*(ranges.start.shape[:1] for ranges in regions))
    start = torch.cat([ranges.start.expand(B, -1, -1) for ranges in regions], dim=-1)
    stop = torch.cat([ranges.stop.expand(B, -1, -1) for ranges in regions], dim=-1)
    return Intervals(start.contiguous(), stop.contiguous(), regions[0].Tk)
