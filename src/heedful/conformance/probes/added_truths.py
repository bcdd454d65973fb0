"""Check that no mask of truths is added to the scores: True and False are 1 and 0 there, which hides nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    VIEWS,
    ancestors,
)
from heedful.conformance.recording.observation import Observation, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

OPPOSITES: tuple[str, ...] = ("invert", "logical_not", "bool")


@probe("mask-fill-too-small")
def added_truths(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Find a Boolean tensor that is added to what a softmax takes."""
    run = evidence.baseline
    steps = run.trace.steps
    for softmax in (step for step in steps if step.operation in SOFTMAXES):
        for index in sorted(ancestors(steps, softmax)):
            step = steps[index]
            if step.shape == softmax.shape and _adds_truths(run, step):
                yield Finding(
                    "mask-fill-too-small",
                    "bug",
                    "A Boolean mask is added to the scores, which adds 1 where it is True and 0 where it is False: "
                    "every key keeps a weight.",
                    "",
                    SourceLine.of(step),
                    "Fill the scores of hidden keys with −∞: scores.masked_fill(~mask, float('-inf')).",
                )
                return


def _adds_truths(run: Observation, step: Step) -> bool:
    """Check whether a step adds a Boolean tensor that the target makes itself to a tensor of numbers."""
    if step.operation not in ADDITIONS:
        return False
    tensors = [(source, it) for source in step.inputs if (it := value_of(run, source)) is not None]
    truths = [source for source, it in tensors if it.dtype == torch.bool and it.dim() > 1]
    return 0 < len(truths) < len(tensors) and not any(_is_given(run, it) for it in truths)


def _is_given(run: Observation, source: Source) -> bool:
    """Check whether a Boolean tensor is an argument that is Boolean, perhaps in another view: the caller chose that."""
    steps = run.trace.steps
    while source.step is not None and steps[source.step].operation in (*VIEWS, *OPPOSITES):
        source = steps[source.step].inputs[0]
    return source.kind == "input"
