"""Probe: of two variables that are made alike, the code does not add one to itself and forget the other."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.projections import COMBINING, projections
from heedful.conformance.recording.assignments import variable_is_read_after
from heedful.conformance.recording.dataflow import ancestors, operands_of
from heedful.conformance.recording.siblings import are_made_alike
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.observation import Step

GATES: tuple[str, ...] = ("sigmoid", "softmax", "tanh", "hardsigmoid")


@probe("weights-wrong")
def forgotten_siblings(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for weights from a variable that meets itself, while nothing reads another one that is made alike."""
    steps = evidence.baseline.trace.steps
    for step in steps:
        used = _operand_meeting_itself(step)
        if used is None or not _makes_weights(steps, step):
            continue
        for idle in (it for it in steps[: step.index] if it.unused):
            if not _are_siblings(idle, steps[used], step):
                continue
            if any(isinstance(it, Finding) for it in projections.ask(evidence)):
                return
            yield Finding(
                "weights-wrong",
                "bug",
                f"{steps[used].name} meets itself here, and nothing reads {idle.name}, which is made in the same way.",
                ANY_CALL,
                SourceLine.of(step),
            )
            return


def _operand_meeting_itself(step: Step) -> int | None:
    """Return the index of the step whose result is both operands of a sum or product; None if there is none."""
    if step.operation not in COMBINING:
        return None
    operands = [it.step for it in operands_of(step)]
    return operands[0] if len(operands) == 2 and operands[0] == operands[1] else None


def _makes_weights(steps: tuple[Step, ...], start: Step) -> bool:
    """Check whether weights between 0 and 1 are computed from the result of a step."""
    gates = (it for it in steps[start.index + 1 :] if it.operation in GATES)
    return any(start.index in ancestors(steps, it) for it in gates)


def _are_siblings(idle: Step, used: Step, meeting: Step) -> bool:
    """Check whether the function in which a variable meets itself assigns another alike, and never reads that."""
    place = SourceLine.of(idle)
    same_function = (idle.file, idle.function, idle.module) == (
        meeting.file,
        meeting.function,
        meeting.module,
    )
    if place is None or not same_function or idle.shape != used.shape:
        return False
    is_alike = are_made_alike(idle.source, used.source) and idle.name != used.name
    return is_alike and not variable_is_read_after(place, idle.name)
