"""Probe: the result of every masking step is used."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding

MASKING: tuple[str, ...] = ("masked_fill", "where", "masked_scatter")


@probe("mask-unused")
def unused_mask(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for a masking step whose result nothing uses."""
    for step in evidence.baseline.trace:
        if not step.unused or step.operation not in MASKING:
            continue
        in_place = "" if step.operation == "where" else f", or call {step.operation}_"
        yield Finding(
            "mask-unused",
            "bug",
            f"Nothing uses the result of {step.operation}, so the mask has no effect.",
            f"step {step.index} of the recording",
            SourceLine.of(step),
            f"{step.operation} returns a new tensor: use it{in_place}.",
        )
        return
