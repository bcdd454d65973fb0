"""Probe: what is added to the scores of all keys alike cancels out in a softmax, unless a nonlinearity follows.

An additive score is v · tanh(W q + U k) (Bahdanau et al. 2015, appendix A.1.2). Without the tanh, the query adds the
same number to the scores of all keys, so that the weights do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import (
    DIVISIONS,
    JOINING,
    MULTIPLICATIONS,
    PRODUCTS,
    SOFTMAXES,
    VIEWS,
    ancestors,
    behind_views,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

LINEAR = ("linear", "sum", *PRODUCTS, *MULTIPLICATIONS, *DIVISIONS)
MANY = 4  # a mask has fewer different numbers


@probe("weights-wrong")
def cancelled_terms(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Follow scores back from a softmax over linear steps to a sum, one of whose terms is the same for all keys."""
    run = evidence.baseline
    for softmax in (it for it in run.trace if it.operation in SOFTMAXES):
        axis = _normalized_axis(softmax)
        found = None if axis is None else _cancelled(run, softmax, axis)
        if found is not None:
            step, term = found
            yield Finding(
                "weights-wrong",
                "bug",
                f"{term.name or 'One term'!r} is the same for all keys, and no nonlinearity lies between this line and "
                "the softmax, in which it cancels out: the weights do not depend on it.",
                "",
                SourceLine.of(step),
                "Apply a nonlinearity to the sum, as in v · tanh(W q + U k).",
            )
            return


def _normalized_axis(softmax: Step) -> int | None:
    """Return the axis along which the only sums of a softmax are 1; None if that is not clear."""
    weights = tensor_of(softmax)
    if weights is None or not weights.isfinite().all():
        return None
    axes = [
        axis
        for axis, size in enumerate(weights.shape)
        if size > 1 and torch.allclose(it := weights.sum(axis), torch.ones_like(it))
    ]
    return axes[0] if len(axes) == 1 else None


def _cancelled(run: Observation, softmax: Step, axis: int) -> tuple[Step, Source] | None:
    """Return the sum, and its term that is the same along the axis of a softmax's keys; None if there is none."""
    steps = run.trace.steps
    pending = [it.step for it in softmax.inputs[:1] if it.step is not None]
    while pending:
        step = steps[pending.pop()]
        along = _axis_of_keys(step, softmax, axis)
        if step.operation in (*ADDITIONS, *JOINING) and along is not None:
            term = next((it for it in step.inputs if _is_alike(run, step, it, along)), None)
            if term is not None and not (_is_of_positions(run, term) or _are_distances(run, step)):
                return step, term
        of_tokens = [it for it in step.inputs if _is_computed(run, it)]
        if step.operation in (*ADDITIONS, *VIEWS) or (
            step.operation in LINEAR and len(of_tokens) == 1
        ):
            pending += [it.step for it in of_tokens if it.step is not None]
    return None


def _are_distances(run: Observation, step: Step) -> bool:
    """Check whether a step subtracts each row of one tensor from the others, as relative positions are computed."""
    sources = {behind_views(run.trace.steps, it) for it in step.inputs}
    return step.operation in ("sub", "subtract") and len(sources) == 1


def _axis_of_keys(step: Step, softmax: Step, axis: int) -> int | None:
    """Return the axis of a step that becomes the axis of a softmax's keys; None if that is not clear.

    Scores of as many queries as keys have two axes of one size; they come from the first axes of the same sizes.
    """
    keys = softmax.shape[axis]
    if step.shape.count(keys) == 1 == softmax.shape.count(keys):
        return step.shape.index(keys)
    same = step.shape[: len(softmax.shape)] == softmax.shape
    return axis if same and len(step.shape) == len(softmax.shape) + 1 else None


def _is_alike(run: Observation, step: Step, term: Source, axis: int) -> bool:
    """Check whether a term of a sum, or a part of joined features, is the same along an axis, unlike the others.

    What is computed from the others, as their maximum, is meant to cancel out, and so are masks.
    """
    value, result = value_of(run, term), tensor_of(step)
    others = [it for it in step.inputs if it is not term and _is_computed(run, it)]
    if value is None or result is None or not others or not _is_computed(run, term):
        return False
    if step.operation in ADDITIONS:
        value = value.expand(result.shape)
    behind = (
        set[int]() if term.step is None else ancestors(run.trace.steps, run.trace.steps[term.step])
    )
    if value.dim() != result.dim() or any(it.step in behind for it in others):
        return False
    if not value.is_floating_point() or len(value.unique()) <= MANY:
        return False
    return _is_constant(value, axis) and not _is_constant(result, axis)


def _is_of_positions(run: Observation, term: Source) -> bool:
    """Check whether a term is computed from an argument for positions, whose number of rows may be a wrong guess."""
    steps = run.trace.steps
    behind = () if term.step is None else ancestors(steps, steps[term.step])
    read = (term, *(it for index in behind for it in steps[index].inputs))
    return any(it.kind == "input" and "pos" in it.name for it in read)


def _is_constant(value: Tensor, axis: int) -> bool:
    return value.shape[axis] > 1 and bool((value == value.narrow(axis, 0, 1)).all())


def _is_computed(run: Observation, source: Source) -> bool:
    """Check whether a tensor is an argument of the call, or is computed from one."""
    steps = run.trace.steps
    behind = () if source.step is None else ancestors(steps, steps[source.step])
    return any(
        it.kind == "input" for it in (source, *(it for n in behind for it in steps[n].inputs))
    )
