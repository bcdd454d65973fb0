"""Probe: what is rolled before the attention is rolled back by as much after it."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.rolls import rolls_of
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding


@probe("context-wrong")
def rolled_back(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compare the shifts of two rolls in opposite directions: the second one has to undo the first one."""
    rolls = rolls_of(evidence.baseline) or []
    if len(rolls) != 2 or rolls[0].axes != rolls[1].axes:
        return
    (first, there, axes), (second, back, _) = rolls
    opposite = all(a * b < 0 for a, b in zip(there, back, strict=True))
    if not opposite or there == tuple(-shift for shift in back):
        return
    copied = len(set(there)) == 1 < len(set(back))  # one shift was written for all axes
    yield Finding(
        "context-wrong",
        "bug",
        f"Axes {axes} are rolled by {there} and back by {back}: tokens do not return to their places.",
        f"T = {evidence.inputs.sizes[1]}",
        SourceLine.of(first if copied else second),
        "Roll back by the same shifts, with the opposite sign.",
    )
