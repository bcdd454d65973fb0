"""Check that no mask of zeros and ones is multiplied into the scores: a score of 0 hides nothing from a softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from heedful.conformance.evidence.attention import FAINT
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    MULTIPLICATIONS,
    SOFTMAXES,
    VIEWS,
    ancestors,
    behind_views,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times


@probe("mask-fill-too-small")
def multiplied_mask(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Find a mask that sets scores to 0 before a softmax, and check that these keys get no weight.

    A mask of ones hides nothing, but shows where another one would.
    """
    run = evidence.baseline
    for softmax in (step for step in run.trace if step.operation in SOFTMAXES):
        weights = tensor_of(softmax)
        for index in sorted(ancestors(run.trace.steps, softmax) - {softmax.index}):
            step = run.trace.steps[index]
            hidden = _hidden(run, softmax, step)
            if weights is None or hidden is None or not (weights[hidden] > FAINT).any():
                continue
            yield Finding(
                "mask-fill-too-small",
                "bug",
                "The mask is multiplied into the scores, so that hidden ones are 0, not −∞: they get weights up to "
                f"{weights[hidden].max():.3g}.",
                f"scores {times(softmax.shape)}",
                SourceLine.of(step),
            )
            return
    for softmax in (step for step in run.trace if step.operation in SOFTMAXES):
        step = _multiplying_ones(run, softmax)
        if step is not None:
            yield Finding(
                "mask-fill-too-small",
                "bug",
                "The mask is multiplied into the scores: where it is 0, the score is 0, not −∞, and the key gets a "
                "weight.",
                f"scores {times(softmax.shape)}",
                SourceLine.of(step),
            )
            return


def _multiplying_ones(observation: Observation, softmax: Step) -> Step | None:
    """Return the step that multiplies scores by an argument of ones which is called a mask, right before a softmax.

    The argument is read there alone: weights may be multiplied by it afterwards, and divided by their sum.
    """
    steps = observation.trace.steps
    logits = behind_views(steps, softmax.inputs[0]) if softmax.inputs else None
    step = None if logits is None or logits.step is None else steps[logits.step]
    if step is None or step.operation not in MULTIPLICATIONS or step.shape != softmax.shape:
        return None
    for source in (behind_views(steps, it) for it in step.inputs):
        mask = value_of(observation, source) if source.kind == "input" else None
        is_mask = mask is not None and mask.dim() > 1 and "mask" in source.name.lower()
        if mask is not None and is_mask and bool((mask == 1).all()):
            return step if _users(steps, source) == [step] else None
    return None


def _users(steps: Sequence[Step], source: Source) -> list[Step]:
    """Return the steps that compute with an argument, however it is rearranged."""
    return [
        step
        for step in steps
        if step.operation not in VIEWS
        and any(behind_views(steps, it) == source for it in step.inputs)
    ]


def _hidden(observation: Observation, softmax: Step, step: Step) -> Tensor | None:
    """Return where a step multiplies scores by 0 that are still 0 in a softmax; None if it is another step."""
    if step.operation not in MULTIPLICATIONS or step.shape != softmax.shape:
        return None
    logits = value_of(observation, next(iter(softmax.inputs), None))
    for source in step.inputs:
        mask = value_of(observation, source)
        if logits is None or mask is None or mask.dim() < 2:
            continue
        if not (_is_given(observation, source) or _is_named_mask(observation, source)):
            continue
        hidden = (mask == 0).expand(step.shape)
        of_zeros_and_ones = bool((hidden | (mask == 1)).all())
        if of_zeros_and_ones and hidden.any() and not hidden.all() and not logits[hidden].any():
            return hidden
    return None


def _is_named_mask(observation: Observation, source: Source) -> bool:
    """Check whether a tensor, or a function that makes it, is called a mask: it is meant to hide what it sets to 0."""
    steps = observation.trace.steps
    behind = () if source.step is None else ancestors(steps, steps[source.step])
    made_by = (steps[index].function or "" for index in behind)
    return any("mask" in it.lower() for it in (source.name.partition("·")[0], *made_by))


def _is_given(observation: Observation, source: Source) -> bool:
    """Check whether a tensor is computed from no token, unlike a choice of the largest scores."""
    steps, tokens = observation.trace.steps, observation.inputs.arguments
    behind = () if source.step is None else ancestors(steps, steps[source.step])
    sources = [source, *(it for index in behind for it in steps[index].inputs)]
    return not any(it.kind == "input" and it.name in tokens for it in sources)
