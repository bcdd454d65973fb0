"""Probe: scores that are not among the largest are hidden by −∞, and not by 0, whose exponential is 1."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    ancestors,
    behind_views,
)
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding

ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
SCATTERS = frozenset({"scatter", "scatter_"})


@probe("mask-fill-too-small")
def pruned_scores(evidence: Evidence) -> Iterator[Finding]:
    """Search for a softmax of the largest scores alone that were put into a tensor of zeros."""
    steps = evidence.baseline.trace.steps
    for softmax in (it for it in steps if it.operation in SOFTMAXES):
        source = behind_views(steps, softmax.inputs[0])
        scatter = None if source.step is None else steps[source.step]
        if scatter is None or scatter.operation not in SCATTERS or len(scatter.inputs) < 3:
            continue
        behind = [steps[it].operation for it in ancestors(steps, scatter)]
        into = behind_views(steps, scatter.inputs[0]).step
        if into is not None and steps[into].operation in ZEROS and "topk" in behind:
            yield Finding(
                "mask-fill-too-small",
                "bug",
                "All scores but the largest are 0 when the softmax is applied. As the exponential of 0 is 1, every key "
                "keeps a share of the weights.",
                "",
                SourceLine.of(scatter),
                "Put the largest scores into a tensor of float('-inf').",
            )
            return
