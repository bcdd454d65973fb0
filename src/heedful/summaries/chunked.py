"""The statistics of attention weights in PyTorch: some queries at a time, on any device and in any dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from heedful.problem import AttentionProblem
from heedful.scores import soft_cap, softmax_with_sinks
from heedful.statistics import Statistics
from heedful.summaries.request import SummaryRequest

MAX_SCORES: int = 2**22  # of one chunk of queries, unless one query has more


def summarize(request: SummaryRequest) -> Statistics[Tensor]:
    """Return the statistics; those that are not wanted have no numbers."""
    problem = request.problem
    B, Hq, _, Tq, Tk, _, _ = problem.sizes
    key = seen_key(problem)
    totals = _Totals(request, key)
    rows = torch.arange(Tq, device=key.device)
    chunks = rows.split(max(1, MAX_SCORES // max(1, B * Hq * Tk)))
    parts = [_summarize_rows(request, key, part, totals) for part in chunks]
    for_queries = (torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True))
    lse, mass, entropy, largest, distance, top_weights, top_keys, region_mass = for_queries
    return Statistics(
        *(lse, mass, entropy, largest, distance, totals.received),
        *(top_weights, top_keys, region_mass, totals.cell_sums, totals.cell_maxima),
    )


class _Totals:
    """The sums over all queries, to which the weights of each chunk of queries are added."""

    def __init__(self, request: SummaryRequest, key: Tensor) -> None:
        B, Hq, _, Tq, Tk, _, _ = request.problem.sizes
        self.wanted: bool = request.for_each_key
        self.cell: list[int] = request.cell_and_offsets
        rows = columns = 0
        if self.cell:
            cell_queries, cell_keys, first_query, first_key = self.cell
            rows, columns = (
                -(-(first_query + Tq) // cell_queries),
                -(-(first_key + Tk) // cell_keys),
            )
        self.received: Tensor = key.new_zeros((B, Hq, Tk) if self.wanted else (0,))
        self.cell_sums: Tensor = key.new_zeros(B, Hq, rows, columns)
        self.cell_maxima: Tensor = key.new_zeros(B, Hq, rows, columns)

    def add(self, weights: Tensor, rows: Tensor) -> None:
        """Add the weights (B, Hq, rows, Tk) of some queries."""
        if self.wanted:
            self.received += weights.sum(dim=2)
        if not self.cell:
            return
        cell_queries, cell_keys, first_query, first_key = self.cell
        after = -(first_key + weights.shape[-1]) % cell_keys
        columns = torch.nn.functional.pad(weights, (first_key, after)).unflatten(
            -1, (-1, cell_keys)
        )
        row = ((rows + first_query) // cell_queries).view(-1, 1).expand(columns.shape[:-1])
        self.cell_sums.scatter_add_(2, row, columns.sum(dim=-1))
        self.cell_maxima.scatter_reduce_(2, row, columns.amax(dim=-1), "amax")


def seen_key(problem: AttentionProblem) -> Tensor:
    """Return the keys in float32 or better, with 0 where no query may see them."""
    key, _ = problem.seen_key_and_value()
    return key.to(torch.promote_types(key.dtype, torch.float32))


def scores_of(
    problem: AttentionProblem, key: Tensor, rows: Tensor, first: int, last: int
) -> Tensor:
    """Return the scores (B, Hq, rows, last − first) of some queries with the keys first … last − 1, −∞ where hidden."""
    B, Hq, Hkv, Tq, Tk, D, _ = problem.sizes
    query = problem.query.index_select(2, rows).to(key.dtype)
    group = Hq // max(Hkv, 1)
    grouped = query.reshape(
        B, Hkv, group * len(rows), D
    )  # the heads that share keys, one after the other
    dots = grouped @ key[:, :, first:last].mT
    scores = soft_cap(dots.view(B, Hq, len(rows), last - first) * problem.factor, problem.softcap)
    if problem.bias is not None:
        bias = problem.bias.expand(B, Hq, Tq, Tk).index_select(2, rows)[..., first:last]
        scores = scores + bias.to(scores.dtype)
    visible = _visible(problem, rows, first, last)
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def _visible(problem: AttentionProblem, rows: Tensor, first: int, last: int) -> Tensor | None:
    """Return which of the keys some queries see: Boolean (B or 1, Hq or 1, rows, keys); None: all."""
    if problem.intervals is not None:
        return problem.intervals.rows(rows).keys(first, last).unsqueeze(1)
    if problem.dense_mask is None:
        return None
    dense = problem.dense_mask[..., first:last]
    return dense if dense.shape[2] == 1 else dense.index_select(2, rows)


def weights_from(scores: Tensor, lse: Tensor) -> Tensor:
    """Return exp(scores − lse), 0 where the logarithm is −∞."""
    return torch.exp(
        scores - lse.unsqueeze(-1).masked_fill(lse.unsqueeze(-1) == -math.inf, math.inf)
    )


def _summarize_rows(
    request: SummaryRequest, key: Tensor, rows: Tensor, totals: _Totals
) -> tuple[Tensor, ...]:
    """Return the statistics of some queries, and add their weights to the totals."""
    problem, Tk = request.problem, request.problem.sizes.Tk
    scores = scores_of(problem, key, rows, 0, Tk)
    if request.lse is None:
        weights, lse = softmax_with_sinks(scores, problem.sinks)
    else:
        lse = request.lse.index_select(2, rows)
        weights = weights_from(scores, lse)
    totals.add(weights, rows)
    mass = entropy = largest = distance = weights.new_empty(0, 0, 0)
    if request.for_each_query:
        places = (rows + request.shift).unsqueeze(-1)
        steps = (places - torch.arange(Tk, device=key.device)).abs()
        mass, entropy = weights.sum(dim=-1), torch.special.entr(weights).sum(dim=-1)
        largest = weights.amax(dim=-1) if Tk else torch.zeros_like(mass)
        distance = (weights * steps).sum(dim=-1)
    top_weights, top_keys = _top(weights, scores, request.top_k)
    region_mass = _region_mass(weights, request, rows)
    return lse, mass, entropy, largest, distance, top_weights, top_keys, region_mass


def _top(weights: Tensor, scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the largest weights and their keys. Of equal scores, the earlier key comes first: the sort is stable."""
    if not top_k:
        empty = weights[..., :0]
        return empty, empty.long()
    missing = max(0, top_k - scores.shape[-1])
    scores = torch.nn.functional.pad(scores, (0, missing), value=-math.inf)
    weights = torch.nn.functional.pad(weights, (0, missing))
    keys = scores.sort(dim=-1, descending=True, stable=True).indices[..., :top_k]
    hidden = scores.gather(-1, keys) == -math.inf
    return weights.gather(-1, keys).masked_fill(hidden, 0.0), keys.masked_fill(hidden, -1)


def _region_mass(weights: Tensor, request: SummaryRequest, rows: Tensor) -> Tensor:
    """Return the mass of each key range of the regions: (B, Hq, rows, R)."""
    if request.ranges is None:
        return weights[..., :0]
    j = torch.arange(weights.shape[-1], device=weights.device)
    ranges, masses = request.ranges.rows(rows), []
    for start, stop in zip(ranges.start.unbind(-1), ranges.stop.unbind(-1), strict=True):
        inside = (j >= start.unsqueeze(-1)) & (j < stop.unsqueeze(-1))
        masses.append(weights.masked_fill(~inside.unsqueeze(1), 0.0).sum(dim=-1))
    return torch.stack(masses, dim=-1)
