"""Probe: what is rolled before the attention is rolled back by as much after it."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step


@probe("context-wrong")
def rolled_back(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compare the shifts of two rolls in opposite directions: the second one has to undo the first one."""
    rolls = [it for step in evidence.baseline.trace if (it := _roll(step)) is not None]
    if len(rolls) != 2 or rolls[0][2] != rolls[1][2]:
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


def _roll(step: Step) -> tuple[Step, tuple[int, ...], tuple[int, ...]] | None:
    """Return a step, its shifts and its axes if it rolls several axes."""
    if step.operation != "roll":
        return None
    given = {"shifts": 1, "dims": 2}
    shifts, axes = (
        step.keywords.get(name, step.arguments[n] if n < len(step.arguments) else None)
        for name, n in given.items()
    )
    if not isinstance(shifts, tuple | list) or not isinstance(axes, tuple | list):
        return None
    numbers = [it for it in (*shifts, *axes) if isinstance(it, int)]
    if len(numbers) != len(shifts) + len(axes) or len(shifts) != len(axes):
        return None
    return step, tuple(numbers[: len(shifts)]), tuple(numbers[len(shifts) :])
