"""Probe: views join and divide the axes of a tensor, and tear none apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import mul

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    PRODUCTS,
    SOFTMAXES,
    SPLITTING,
    VIEWS,
    ancestors,
    behind_views,
    steps_from_tokens,
    unused_steps,
)
from heedful.conformance.recording.observation import value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.root_causes import TEARS
from heedful.observation import Step
from heedful.shapes import times


@probe("heads-mixed-split", "heads-mixed-merge", "weights-wrong")
def torn_views(evidence: Evidence) -> Iterator[Finding]:
    """Look for views whose axes begin in the midst of other axes, as if a view could transpose them.

    What the caller passes may have another layout than the check assumes.
    """
    steps = evidence.baseline.trace.steps
    for step, before in _torn_views(evidence):
        from_caller = behind_views(steps, step.inputs[0]).kind == "input"
        yield Finding(
            _name(steps, step),
            "suspicious" if from_caller else "bug",
            f"{TEARS} {times(before)} numbers as {times(step.shape)} does not transpose them: what belongs together "
            "along one axis is put on several.",
            "",
            SourceLine.of(step),
            "Permute the axes first, as in x.transpose(1, 2).reshape(…).",
        )
        return


def _name(steps: Sequence[Step], view: Step) -> str:
    """Return the finding on a view: one of weights, one of a context, which products of weights lead to, or neither."""
    behind = ancestors(steps, view)
    softmaxes = {it for it in behind if steps[it].operation in SOFTMAXES}
    products = (steps[it] for it in behind if steps[it].operation in PRODUCTS)
    fused = any(steps[it].operation == FUSED for it in behind)
    if fused or any(softmaxes & ancestors(steps, it) for it in products):
        return "heads-mixed-merge"
    return "weights-wrong" if softmaxes else "heads-mixed-split"


def _torn_views(evidence: Evidence) -> Iterator[tuple[Step, Sequence[int]]]:
    """Yield the views that tear axes of a tensor apart that is computed from the tokens, with its sizes before."""
    steps = evidence.baseline.trace.steps
    idle, from_tokens = unused_steps(steps), steps_from_tokens(steps)
    for step in steps:
        if step.operation not in SPLITTING or step.index in idle or step.index not in from_tokens:
            continue
        before = value_of(evidence.baseline, step.inputs[0])
        if before is None or not before.is_floating_point() or not before.numel():
            continue
        if _tears(before.shape, step.shape) and not shifts_positions(evidence, step):
            yield step, before.shape


def _tears(before: Sequence[int], after: Sequence[int]) -> bool:
    """Check whether an axis after a view begins in the midst of an axis before it that it does not divide evenly."""
    known = [1, *accumulate(before, mul)]
    for size in accumulate(after, mul):
        below = max(it for it in known if it <= size)
        above = min(it for it in known if it >= size)
        if size % below or above % size:
            return True
    return False


def shifts_positions(evidence: Evidence, view: Step) -> bool:
    """Check whether a view is part of a shift of relative positions, in which each row begins one number later.

    The tensor has got one number more along one axis before, or another view of it loses the first one along an axis.
    """
    steps = evidence.baseline.trace.steps
    step: Step | None = view
    while step is not None and step.operation in VIEWS:
        if step.operation in SPLITTING and _loses_one(steps, step):
            return True
        source = step.inputs[0].step
        step = None if source is None else steps[source]
        if step is not None and step.operation in ("pad", "cat"):
            before = (value_of(evidence.baseline, it) for it in step.inputs)
            if any(it is not None and _is_one_longer(step.shape, it.shape) for it in before):
                return True
    return False


def _loses_one(steps: Sequence[Step], view: Step) -> bool:
    """Check whether what uses a view has one number less along one axis."""
    uses = (it for it in steps if any(source.step == view.index for source in it.inputs))
    return any(it.operation in VIEWS and _is_one_longer(view.shape, it.shape) for it in uses)


def _is_one_longer(shape: Sequence[int], before: Sequence[int]) -> bool:
    """Check whether one axis of a shape has one number more than before, and the others have as many."""
    more = [a - b for a, b in zip(shape, before, strict=False) if a != b]
    return len(shape) == len(before) and more == [1]
