"""Probe: masking makes scores small, not large."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fills import FILLING_OPERATIONS, fill_line, fill_of
from heedful.conformance.probes.padded_batch import padded_run, padded_subject
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

LARGE = 1e4
"""A score above this leaves nothing for the others."""
SOFTMAXES: tuple[str, ...] = ("softmax", "log_softmax", "softmax_")


@probe("mask-fill-positive")
def mask_fill_sign(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Look for fills with +∞ or a large positive number that are still that large when the softmax reads them."""
    subject = padded_subject(evidence)
    runs = [evidence.baseline]
    if subject is not None:
        runs.append(padded_run(evidence, subject, "right"))
    for run in runs:
        finding = _positive_fill(evidence, run)
        if finding is not None:
            yield finding
            return


def _positive_fill(evidence: Evidence, run: Observation) -> Finding | None:
    """Return a finding on the first positive fill that a softmax reads in a run."""
    steps = run.trace.steps
    for softmax in steps:
        if softmax.operation not in SOFTMAXES or not _reads_large_scores(steps, softmax):
            continue
        for index in sorted(ancestors(steps, softmax)):
            step = steps[index]
            fill = fill_of(run, step)
            if step.operation not in FILLING_OPERATIONS or fill is None or fill < LARGE:
                continue
            number = "+∞" if math.isinf(fill) else f"{fill:.3g}"
            return Finding(
                "mask-fill-positive",
                "bug",
                f"Hidden scores are set to {number}, and the softmax reads them: hidden keys get all the weight.",
                f"T = {run.inputs.sizes[1]}",
                fill_line(evidence, step),
            )
    return None


def _reads_large_scores(steps: tuple[Step, ...], softmax: Step) -> bool:
    """Check whether an input of a softmax has entries as large as a positive fill."""
    scores = (tensor_of(steps[source.step]) for source in softmax.inputs if source.step is not None)
    return any(isinstance(score, Tensor) and bool((score >= LARGE).any()) for score in scores)
