"""Exact statistics of attention weights as a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.kernels import native
from heedful.masks import Mask
from heedful.modes import any_set, transforming, values_known
from heedful.problem import AttentionProblem
from heedful.scores import softmax_with_sinks
from heedful.statistics import Statistics
from heedful.summaries import chunked
from heedful.summaries.request import Cell, Part, Region, SummaryRequest, make_request
from heedful.summaries.summary import Summary


def summarize(
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv Tk D"],
    mask: Mask | Bool[Tensor, " ..."] | None = None,
    *,
    bias: Float[Tensor, " ..."] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " Hq"] | None = None,
    lse: Float[Tensor, "B Hq Tq"] | None = None,
    for_each_query: bool = True,
    for_each_key: bool = True,
    top_k: int = 0,
    pool: int | tuple[int, int] | None = None,
    regions: Mapping[str, Region] | None = None,
    rows: Sequence[int] | slice | Tensor | None = None,
    columns: tuple[int, int] | None = None,
    queries: tuple[int, int] | None = None,
    keys: tuple[int, int] | None = None,
) -> Summary:
    """Compute exact statistics of the attention weights, at any length, without a Tq x Tk tensor.

    The weights are exp(scores − lse), those that `attention` multiplies the values with, before dropout. The native
    kernel computes the statistics on CPUs, in tiles, and PyTorch elsewhere, some queries at a time. Results have no
    gradients. `torch.compile` takes the call into its graph.

    Args:
        query: (B, Hq, Tq, D), like all arguments up to sinks as `attention` takes it.
        key: (B, Hkv, Tk, D).
        mask: which keys each query sees.
        bias: added to the scores after the soft-cap, broadcastable to (B, Hq, Tq, Tk).
        scale: multiplies the dot products; None: 1/√D.
        softcap: scores become softcap · tanh(scores / softcap).
        sinks: (Hq,) logits of one more key per head.
        lse: (B, Hq, Tq), float32 or better, the log-sum-exp of `attention(…, return_lse=True)`. It saves the time to
            compute it. The weights are then exact to float32's rounding of it.
        for_each_query: whether to compute mass, entropy, largest weight and mean distance of each query.
        for_each_key: whether to compute the received mass of each key.
        top_k: how many keys to find for each query, those with the largest weights.
        pool: the numbers of rows and columns of the pooled map, at most. Its cells have the same size, which is rounded
            up; so there may be fewer. One number stands for both.
        regions: named sets of keys, whose mass is computed for each query: a mask with key ranges, such as
            ``Sinks(4)``, ``Window(256)`` or ``Documents(ids)``, or a span (start, stop) of keys.
        rows: the indices of queries whose weights to return in full; ``slice(None)`` stands for all.
        columns: the keys (start, stop) for which to return them; None: all. Those of some are exact to the rounding
            of the log-sum-exp to float32.
        queries: (first, total): where the queries stand among all, if they are a part. Mask, bias and regions are then
            those of all queries and keys; lse, rows and columns belong to the part. `Summary.merge` joins parts.
        keys: (first, total), likewise.

    Returns:
        The summary. Those of its statistics that were not requested are None.

    Raises:
        ArgumentError: the arguments do not fit together; the message says what would fit.
        KernelError: memory ran out.

    Examples:
        >>> from heedful import Causal, Sinks
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> summary = summarize(x, x, Causal(), top_k=1, pool=2, regions={"first": Sinks(1)})
        >>> summary.region_mass["first"]
        tensor([[[1.0000, 0.5000, 0.3333, 0.2500]]])
        >>> summary.pooled_mean
        tensor([[[[0.5000, 0.0000],
                  [0.2917, 0.2083]]]])
    """
    request = make_request(
        *(query, key, mask),
        bias=bias,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        lse=lse,
        for_each_query=for_each_query,
        for_each_key=for_each_key,
        top_k=top_k,
        pool=pool,
        regions=regions,
        queries=queries,
        keys=keys,
    )
    chosen, span = _check_rows(rows, request), _check_columns(columns, rows, request)
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        statistics = _compute(request)
        weights = None if chosen is None else _weights(request, statistics.lse, chosen, *span)
    return _as_summary(request, statistics, weights)


def received_mass(
    problem: AttentionProblem, lse: Float[Tensor, "B Hq Tq"] | None
) -> tuple[Float[Tensor, "B Hq Tq"], Float[Tensor, "B Hq Tk"]]:
    """Return the log-sum-exp of a problem's attention, which may be given, and the received mass of its keys."""
    _, _, _, Tq, Tk, _, _ = problem.sizes
    request = SummaryRequest(
        problem,
        None if lse is None else lse.detach(),
        queries=Part(0, Tq, Tq),
        keys=Part(0, Tk, Tk),
        shift=0,
        for_each_query=False,
        for_each_key=True,
        top_k=0,
        cell=None,
        regions=(),
        ranges=None,
    )
    with torch.no_grad(), torch.autocast(problem.query.device.type, enabled=False):
        statistics = _compute(request)
    return statistics.lse, statistics.received


def _compute(request: SummaryRequest) -> Statistics[Tensor]:
    """Compute the statistics on the native kernel if it can, else in PyTorch."""
    if transforming() and not values_known(request.problem.query):
        raise ArgumentError(
            "query",
            expected="tensors outside torch.vmap, because statistics are added up in place",
            received="tensors that torch.vmap batches",
            remedy="Put its dimension into the batch: tensor.flatten(0, 1).",
        )
    if native.refusal(request.problem):
        return chunked.summarize(request)
    ranges = request.ranges
    return native.summarize(
        request.problem,
        request.lse,
        None if ranges is None else (ranges.start, ranges.stop),
        request.shift,
        request.for_each_query,
        request.for_each_key,
        request.top_k,
        request.cell_and_offsets,
    )


def _check_rows(
    rows: Sequence[int] | slice | Tensor | None, request: SummaryRequest
) -> Tensor | None:
    """Return the rows as int64 (R,); None if none are requested."""
    if rows is None:
        return None
    Tq, device = request.problem.sizes.Tq, request.problem.query.device
    if isinstance(rows, slice):
        rows = range(Tq)[rows]
    if isinstance(rows, Tensor):
        integral = rows.dtype in (torch.int64, torch.int32) and rows.dim() == 1
        outside = integral and any_set((rows < 0) | (rows >= Tq), when_tracing=False)
    else:
        rows = list(rows)
        integral = all(isinstance(row, int) and not isinstance(row, bool) for row in rows)
        outside = integral and any(not 0 <= row < Tq for row in rows)
    if not integral or outside:
        raise ArgumentError(
            "rows",
            expected=f"indices of queries from 0 to {Tq - 1}",
            received=f"{rows}",
            remedy="Pass range(first, last) for neighbouring queries.",
        )
    return torch.as_tensor(rows, dtype=torch.int64, device=device)


def _check_columns(
    columns: tuple[int, int] | None, rows: object, request: SummaryRequest
) -> tuple[int, int]:
    Tk = request.problem.sizes.Tk
    if columns is None:
        return 0, Tk
    if rows is None or len(columns) != 2 or not 0 <= columns[0] <= columns[1] <= Tk:
        raise ArgumentError(
            "columns",
            expected=f"(start, stop) with 0 <= start <= stop <= {Tk}, together with rows",
            received=f"{columns} with rows={rows}",
            remedy="rows=range(q0, q1), columns=(k0, k1) returns a tile of the weights.",
        )
    return columns


def _weights(request: SummaryRequest, lse: Tensor, rows: Tensor, first: int, last: int) -> Tensor:
    """Return the weights of some queries on the keys first … last − 1."""
    key = chunked.seen_key(request.problem)
    scores = chunked.scores_of(request.problem, key, rows, first, last)
    if request.lse is None and (first, last) == (0, key.shape[2]):
        # Where scores are very large or low, float32 rounds the logarithm of the normalizer too coarsely.
        return softmax_with_sinks(scores, request.problem.sinks)[0]
    return chunked.weights_from(scores, lse.index_select(2, rows))


def _as_summary(
    request: SummaryRequest, statistics: Statistics[Tensor], weights: Tensor | None
) -> Summary:
    wanted, keys = request.for_each_query, statistics.top_keys
    mass = statistics.mass if wanted else None
    mean, maximum = _map(request, statistics)
    ranges = iter(statistics.region_mass.unbind(-1))
    return Summary(
        lse=statistics.lse,
        mass=mass,
        entropy=statistics.entropy if wanted else None,
        largest_weight=statistics.largest if wanted else None,
        mean_distance=None
        if mass is None
        else statistics.distance / mass.masked_fill(mass == 0, 1.0),
        received_mass=statistics.received if request.for_each_key else None,
        top_weights=statistics.top_weights if request.top_k else None,
        top_keys=torch.where(keys < 0, keys, keys + request.keys.first) if request.top_k else None,
        region_mass={
            name: torch.stack([next(ranges) for _ in range(count)]).sum(dim=0)
            for name, count in request.regions
        },
        pooled_mean=mean,
        pooled_max=maximum,
        cell=request.cell,
        weights=weights,
        queries=request.queries,
        keys=request.keys,
        lse_given=request.lse is not None,
    )


def _map(
    request: SummaryRequest, statistics: Statistics[Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Return mean and maximum of each cell of the whole map, which is 0 outside of this part."""
    if request.cell is None:
        return None, None
    cell, queries, keys = request.cell, request.queries, request.keys
    rows, columns = -(-queries.total // cell.queries), -(-keys.total // cell.keys)
    row, column = queries.first // cell.queries, keys.first // cell.keys
    after = (
        columns - column - statistics.cell_sums.shape[3],
        rows - row - statistics.cell_sums.shape[2],
    )
    placed = [
        torch.nn.functional.pad(cells, (column, after[0], row, after[1]))
        for cells in (statistics.cell_sums, statistics.cell_maxima)
    ]
    return placed[0] / _weights_of_cells(cell, rows, columns, queries, keys, placed[0]), placed[1]


def _weights_of_cells(
    cell: Cell, rows: int, columns: int, queries: Part, keys: Part, like: Tensor
) -> Tensor:
    """Return how many weights each cell has: (rows, columns)."""
    heights = (queries.total - torch.arange(rows, device=like.device) * cell.queries).clamp(
        max=cell.queries
    )
    widths = (keys.total - torch.arange(columns, device=like.device) * cell.keys).clamp(
        max=cell.keys
    )
    return (heights.unsqueeze(-1) * widths).to(like.dtype)
