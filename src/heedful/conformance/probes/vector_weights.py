"""Probe: weights for each channel are normalized over the tokens that they sum up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    MULTIPLICATIONS,
    SOFTMAXES,
    VIEWS,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times

TOLERANCE = 1e-6
CALLED_WEIGHTS: re.Pattern[str] = re.compile(r"att|alpha|weight|score", re.IGNORECASE)


class WeightedSum(NamedTuple):
    """A sum of values, each entry of which is multiplied by a weight of its own.

    Attributes:
        factors: The two factors, one of which may hold the weights.
        axes: The axes that are summed over.
    """

    factors: tuple[Source, ...]
    axes: tuple[int, ...]


@probe("softmax-wrong-dim")
def vector_weights(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Sum weights of channels, for pairs of tokens or to pool tokens, along the axis of tokens that is summed over."""
    observation, T = evidence.baseline, evidence.inputs.sizes[1]
    for step in observation.trace:
        weighted = weighted_sum(observation, step)
        for factor in () if weighted is None else weighted.factors:
            softmax, weights = _softmax_behind(observation, factor), value_of(observation, factor)
            if weighted is None or softmax is None or weights is None:
                continue
            axes = [axis for axis, size in enumerate(weights.shape) if size == T]
            over_tokens = len(weighted.axes) == 1 and weighted.axes[0] in axes
            of_pairs = len(axes) > 1 or _pools(observation, weighted, softmax)
            if not of_pairs or not over_tokens or _are_ones(weights.sum(weighted.axes)):
                continue
            others = (axis for axis in range(weights.dim()) if axis not in weighted.axes)
            elsewhere = next((it for it in others if _are_ones(weights.sum(it))), None)
            if elsewhere is not None:
                yield Finding(
                    "softmax-wrong-dim",
                    "bug",
                    f"The weights {times(tuple(weights.shape))} sum to 1 along axis {elsewhere}, but weight values "
                    f"that are summed along axis {weighted.axes[0]}.",
                    f"T = {T}",
                    SourceLine.of(softmax),
                    "Take this softmax over the tokens that are summed.",
                )
                return


def _pools(observation: Observation, weighted: WeightedSum, softmax: Step) -> bool:
    """Check whether a sum pools values by what the code calls their weights, one for each channel of each token.

    Classes of tokens may be weighed by other weights, which sum to 1 over the tokens.
    """
    factors = [
        it for it in (value_of(observation, it) for it in weighted.factors) if it is not None
    ]
    same_shape = len({it.shape for it in factors}) == 1
    by_others = any(_are_ones(it.sum(weighted.axes)) for it in factors)
    return same_shape and not by_others and CALLED_WEIGHTS.search(softmax.name) is not None


def weighted_sum(observation: Observation, step: Step) -> WeightedSum | None:
    """Return a step as a sum of products entry by entry: an einsum of equal axes, or the sum of a multiplication."""
    if step.operation == "einsum" and len(step.inputs) == 2 and isinstance(step.arguments[0], str):
        inputs, _, out = step.arguments[0].replace(" ", "").partition("->")
        left, _, right = inputs.partition(",")
        if left != right or "." in left:
            return None
        return WeightedSum(step.inputs, tuple(i for i, it in enumerate(left) if it not in out))
    source = next(iter(step.inputs), None)
    if step.operation != "sum" or source is None or source.step is None:
        return None
    product, value = observation.trace[source.step], tensor_of(observation.trace[source.step])
    result = tensor_of(step)
    if product.operation not in MULTIPLICATIONS or value is None or result is None:
        return None
    axes = (
        axis
        for axis in range(value.dim())
        if any(_equal(value.sum(axis, keepdim=kept), result) for kept in (False, True))
    )
    axis = next(axes, None)
    return None if axis is None else WeightedSum(product.inputs, (axis,))


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other)


def _softmax_behind(observation: Observation, source: Source) -> Step | None:
    """Return the softmax that a factor is, perhaps after dropout; None if it is something else."""
    index = source.step
    while index is not None:
        step = observation.trace[index]
        if step.operation in SOFTMAXES:
            return step
        passes = step.operation in (*VIEWS, "dropout") and step.inputs
        index = step.inputs[0].step if passes else None
    return None


def _are_ones(sums: Tensor) -> bool:
    return torch.allclose(sums, torch.ones_like(sums), atol=TOLERANCE)
