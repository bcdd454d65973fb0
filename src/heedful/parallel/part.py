"""Attention of one rank's queries over some of the keys: computed, merged with the rest, and differentiated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.dispatch import choose
from heedful.dropout import Placement
from heedful.intervals import Intervals
from heedful.masks import KeyRanges
from heedful.problem import AttentionProblem
from heedful.sharded import first_head

QUERIES_AT_ONCE: int = 4096  # whose part of the output is in memory besides the output itself


@dataclass(frozen=True, eq=False)
class Options:
    """What attention is computed with, besides tensors and a mask.

    Attributes:
        scale: as in `attention`, like softcap, dropout_p and kernel.
        first_head: the place of the first query head among all. Default: that of this thread, with tensor parallelism.
        seed: int64 (), which weights are dropped; 0 until all ranks agree on one.
    """

    scale: float | None
    softcap: float | None
    dropout_p: float
    kernel: str
    first_head: int = field(default_factory=first_head)
    seed: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class Queries:
    """The queries of a rank, and what they see.

    Attributes:
        places: int64, their places among all tokens.
        ranges: the keys that they see, of all keys; None: all.
        options: what attention is computed with.
    """

    places: Tensor
    ranges: Intervals | None
    options: Options

    def rows_that_see(self, keys: Tensor) -> Iterator[tuple[slice, KeyRanges | None]]:
        """Yield rows of queries, of which some see some of these keys, and their mask; None: they see all."""
        seeing = torch.arange(len(self.places) if len(keys) else 0)
        ranges = None if self.ranges is None or not len(keys) else self.ranges.onto(keys)
        if ranges is not None:
            seeing = (~ranges.empty_rows()).any(dim=0).nonzero().flatten()
        if not len(seeing):
            return
        first, stop = int(seeing[0]), int(seeing[-1]) + 1
        for start in range(first, stop, QUERIES_AT_ONCE):
            rows = slice(start, min(start + QUERIES_AT_ONCE, stop))
            if ranges is None:
                yield rows, None
            else:
                edges = ranges.start[:, rows], ranges.stop[:, rows]
                yield rows, KeyRanges(Intervals(*edges, len(keys)))

    def problem(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: KeyRanges | None,
        bias: Tensor | None,
        keys: Tensor,
        rows: slice,
    ) -> AttentionProblem:
        """Return the problem of some rows of queries and some keys, in float32 or better."""
        options, wide = self.options, torch.promote_types(query.dtype, torch.float32)
        placement = Placement(options.seed, self.places[rows], keys, options.first_head)
        return AttentionProblem(
            *(tensor.to(wide) for tensor in (query, key, value)),
            mask=mask,
            bias=bias,
            scale=options.scale,
            softcap=options.softcap,
            dropout_p=options.dropout_p,
            return_lse=True,
            placement=placement if options.dropout_p > 0 else None,
        )


def _bias_of_part(bias: Tensor | None, rows: slice, keys: Tensor) -> Tensor | None:
    """Return the part of a bias (B or 1, Hq or 1, queries or 1, all keys or 1) for some queries and keys."""
    if bias is None:
        return None
    bias = bias[:, :, rows] if bias.shape[2] > 1 else bias
    return bias.index_select(3, keys) if bias.shape[3] > 1 else bias


def _add_bias_gradient(gradient: Tensor, part: Tensor, rows: slice, keys: Tensor) -> None:
    """Add the gradient of what `_bias_of_part` returns to that of the whole bias."""
    gradient = gradient[:, :, rows] if gradient.shape[2] > 1 else gradient
    if gradient.shape[3] > 1:
        gradient.index_add_(3, keys, part.to(gradient.dtype))
    else:
        gradient.add_(part)


class Merged:
    """Outputs over different keys, merged one after the other by an online softmax, in float32 or better.

    Args:
        query: (B, Hq, Tq, D), the queries.
        Dv: the head size of the values.
        sinks: (Hq,) logits of one more key per head; None: there are none.
    """

    def __init__(self, query: Tensor, Dv: int, sinks: Tensor | None) -> None:
        wide = torch.promote_types(query.dtype, torch.float32)
        self._output: Tensor = query.new_zeros(*query.shape[:3], Dv, dtype=wide)
        self._highest: Tensor = query.new_full(query.shape[:3], -math.inf, dtype=wide)
        self._sum: Tensor = torch.zeros_like(self._highest)
        if sinks is not None:
            self._highest.copy_(sinks.to(wide).view(-1, 1).expand(query.shape[:3]))
            self._sum.fill_(1)

    def add(self, rows: slice, output: Tensor, lse: Tensor) -> None:
        """Add what some queries see of more keys. The factors are exactly 1 where no score is higher than before."""
        highest, total = self._highest[:, :, rows], self._sum[:, :, rows]
        raised = torch.maximum(highest, lse)
        reference = raised.masked_fill(raised == -math.inf, 0.0)
        correction, share = torch.exp(highest - reference), torch.exp(lse - reference)
        self._output[:, :, rows].mul_(correction.unsqueeze(-1)).addcmul_(
            share.unsqueeze(-1), output
        )
        total.mul_(correction).add_(share)
        highest.copy_(raised)

    def result(self) -> tuple[Tensor, Tensor]:
        """Return output and log-sum-exp of all keys."""
        hidden = self._sum == 0
        total = self._sum.masked_fill(hidden, 1.0)
        lse = (self._highest + total.log()).masked_fill(hidden, -math.inf)
        return self._output.div_(total.unsqueeze(-1)), lse


def compute(
    queries: Queries,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    keys: Tensor,
    merged: Merged,
) -> None:
    """Add to `merged` what this rank's queries see of some keys, whose places among all are `keys`."""
    for rows, mask in queries.rows_that_see(keys):
        part = _bias_of_part(bias, rows, keys)
        problem = queries.problem(query[:, :, rows], key, value, mask, part, keys, rows)
        output, lse = choose(problem, queries.options.kernel).run(problem)
        assert lse is not None  # a kernel that has none refuses the problem
        merged.add(rows, output, lse)


@dataclass(frozen=True, eq=False)
class Results:
    """The results of all keys, and their gradients, in float32 or better.

    Attributes:
        output: (B, Hq, Tq, Dv).
        lse: (B, Hq, Tq).
        grad_output: (B, Hq, Tq, Dv).
        grad_lse: (B, Hq, Tq).
    """

    output: Tensor
    lse: Tensor
    grad_output: Tensor
    grad_lse: Tensor


def differentiate(
    queries: Queries,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    keys: Tensor,
    results: Results,
    grad_query: Tensor,
    grad_bias: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """Return the gradients of some keys and values; None if no query sees them. Add those of query and bias to theirs.

    The output is the mean of the parts' outputs O' with the shares w = exp(lse' − lse). So the gradient of O' is w dO,
    and that of lse' is w (dO · (O' − O) + dlse). The part is computed again for them.
    """
    sums: tuple[Tensor, Tensor] | None = None
    for rows, mask in queries.rows_that_see(keys):
        leaves = [
            tensor.detach().to(results.output.dtype).requires_grad_()
            for tensor in (query[:, :, rows], key, value)
        ]
        if (part := _bias_of_part(bias, rows, keys)) is not None:
            leaves.append(part.detach().requires_grad_())
        wide_query, wide_key, wide_value, *biases = leaves
        part = biases[0] if biases else None
        with torch.enable_grad():
            problem = queries.problem(wide_query, wide_key, wide_value, mask, part, keys, rows)
            output, lse = choose(problem, queries.options.kernel).run(problem)
        assert lse is not None
        towards = _towards_part(output.detach(), lse.detach(), rows, results)
        from_query, from_key, from_value, *from_bias = torch.autograd.grad(
            (output, lse), leaves, towards
        )
        grad_query[:, :, rows] += from_query
        if grad_bias is not None:
            _add_bias_gradient(grad_bias, from_bias[0], rows, keys)
        if sums is None:
            sums = from_key, from_value
        else:
            sums[0].add_(from_key)
            sums[1].add_(from_value)
    return sums


def _towards_part(
    output: Tensor, lse: Tensor, rows: slice, results: Results
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a part's output and log-sum-exp."""
    whole = results.lse[:, :, rows]
    share = torch.exp(lse - whole.masked_fill(whole == -math.inf, 0.0))
    grad_output = results.grad_output[:, :, rows]
    difference = (grad_output * (output - results.output[:, :, rows])).sum(dim=-1)
    return share.unsqueeze(-1) * grad_output, share * (difference + results.grad_lse[:, :, rows])
