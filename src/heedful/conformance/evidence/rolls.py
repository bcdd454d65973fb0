"""The rolls of a run: by how much each one shifts which axes."""

from __future__ import annotations

from typing import NamedTuple

from heedful.conformance.recording.observation import Observation
from heedful.observation import Step


class Roll(NamedTuple):
    """A step that rolls a tensor along several axes.

    Attributes:
        step: The step.
        shifts: By how many entries it moves each axis.
        axes: The axes.
    """

    step: Step
    shifts: tuple[int, ...]
    axes: tuple[int, ...]


def rolls_of(observation: Observation) -> list[Roll] | None:
    """Return the rolls of a run, in order; None if one of them rolls a single axis or the flat tensor."""
    rolls = [_roll(step) for step in observation.trace if step.operation == "roll"]
    known = [roll for roll in rolls if roll is not None]
    return known if len(known) == len(rolls) else None


def _roll(step: Step) -> Roll | None:
    shifts, axes = (
        step.keywords.get(name, step.arguments[n] if n < len(step.arguments) else None)
        for n, name in enumerate(("shifts", "dims"), start=1)
    )
    if not isinstance(shifts, tuple | list) or not isinstance(axes, tuple | list):
        return None
    return Roll(step, tuple(map(int, shifts)), tuple(map(int, axes)))
