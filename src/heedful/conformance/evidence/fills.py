"""The numbers that masks fill scores with, and the source lines that define them."""

from __future__ import annotations

import ast

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.assignments import last_assignment
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.observation import Observation, value_of
from heedful.conformance.recording.source import SourceLine, tree_of
from heedful.observation import Source, Step

FILLING_OPERATIONS: tuple[str, ...] = ("masked_fill", "masked_fill_", "where")


def fill_of(observation: Observation, step: Step) -> float | None:
    """Return the number that a step writes into hidden entries, alone or all over a tensor; None if it is none."""
    for argument in _fill_arguments(step):
        value = value_of(observation, argument)
        if isinstance(argument, bool):
            continue
        if isinstance(argument, int | float):
            return float(argument)
        if value is not None and value.numel() and value.is_floating_point():
            least, largest = value.aminmax()
            if least == largest:
                return least.item()
    return None


def fill_line(evidence: Evidence, step: Step) -> SourceLine | None:
    """Return the line that defines the number that a step fills with, or else the step's own line.

    The number may be an attribute or a buffer of the module, or a local variable.
    """
    for argument in _fill_arguments(step):
        if isinstance(argument, Source) and argument.kind in ("buffer", "attribute"):
            value = value_of(evidence.baseline, argument)
            if value is not None and value.numel() == 1:
                return attribute_definition(evidence.subject.module, argument.name)
    name = _fill_name(step)
    assigned = name and last_assignment(evidence.subject.callee, step, name)
    return assigned or SourceLine.of(step)


def _fill_arguments(step: Step) -> tuple[object, ...]:
    """Return the arguments of a step that may be the fill, the likeliest first."""
    return (*step.arguments[:0:-1], *step.keywords.values())


def _fill_name(step: Step) -> str | None:
    """Return the local variable that a step's line passes as the last argument of its call, if it does."""
    for node in ast.walk(tree_of(step.source)):
        match node:
            case ast.Call(func=ast.Attribute(attr=operation), args=[*_, ast.Name(id=name)]) if (
                operation == step.operation
            ):
                return name
    return None
