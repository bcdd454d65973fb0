"""Probe: rows that are samples by the docstring, as in "(batch, hidden_size)", do not influence each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.evidence.evidence import CHANGED, Evidence
from heedful.conformance.probes.batch_independence import first_mixing_step
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding

OF_SAMPLES: re.Pattern[str] = re.compile(r"[(\[]\s*(batch\w*|bs|bsz|B)\s*[,x×]\s*\w+\s*[)\]]")
"""A shape of two axes, the first of which is the batch."""


@probe("batch-mixed")
def documented_batch(evidence: Evidence) -> Iterator[Finding]:
    """Change a row of what is called with vectors alone, and check that no other row of the result changes."""
    subject, T = evidence.subject, evidence.inputs.sizes[1]
    name = subject.convention.names[0]
    said = documented_arguments(subject.target.callee).get(name, "")
    if subject.layout != "(T, C)" or T <= CHANGED or OF_SAMPLES.search(said) is None:
        return
    others = [
        it
        for it in evidence.influence[0, :, 0, CHANGED].nonzero().flatten().tolist()
        if it != CHANGED
    ]
    if others:
        yield Finding(
            "batch-mixed",
            "bug",
            f"The rows of {name} are those of the batch by the docstring; changing row {CHANGED} changes the result of "
            f"row {others[0]}.",
            f"B = {T}",
            SourceLine.of(
                first_mixing_step(evidence.baseline, evidence.after(0, CHANGED), CHANGED, T)
            ),
        )
