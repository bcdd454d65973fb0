"""Probe: windows that a shift wraps around the edges of an image do not let opposite edges see each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import mask_building_line
from heedful.conformance.evidence.rolls import rolls_of
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.definitions import mask_definition
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step
from heedful.shapes import times

MEANT: re.Pattern[str] = re.compile(
    r"panoram|longitud|\blon\b|spher|periodic|torus|toroid|cylind|\bglobe|weather"
)
"""Words by which code says that an axis of its images closes into a circle."""


class _Shift(NamedTuple):
    """A shift of an image before it is cut into windows.

    Attributes:
        sizes: The number of pixels along each axis.
        window: The number of pixels along the side of a window.
    """

    sizes: tuple[int, ...]
    window: int


@probe("mask-broadcast", "mask-unused", "weights-wrong")
def shifted_windows(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change a pixel at each edge of an image whose windows are shifted, and see whether the opposite edge changes."""
    if MEANT.search(prose_about(evidence.subject.callee)):
        return
    shift = _shift_of(evidence.baseline, evidence.attentions)
    if shift is None:
        yield from _padded_after_the_shift(evidence)
        return
    reached = [
        _reaches_the_opposite_edge(evidence, evidence.inputs, shift, axis)
        for axis in range(len(shift.sizes))
    ]
    if None in reached or not any(reached):
        return
    open_axes = [axis for axis, wraps in enumerate(reached) if wraps]
    name = "mask-unused" if all(reached) else "mask-broadcast"
    masked = mask_definition(evidence.subject.callee)
    yield Finding(
        name,
        "bug" if masked is not None else "suspicious",
        f"Windows are shifted around the edges of the image, and pixels at opposite edges see each other along axis "
        f"{' and '.join(map(str, open_axes))} of {len(shift.sizes)}"
        + ("." if all(reached) else "; along the other axes a mask hides them."),
        f"an image of {' × '.join(map(str, shift.sizes))} pixels in windows of {shift.window}",
        masked or mask_building_line(evidence, evidence.attentions[0]),
        "Number the regions of the shifted image along all its axes, and hide keys of another region than the query's.",
    )


def _padded_after_the_shift(evidence: Evidence) -> Iterator[Finding]:
    """Do the same on a larger image, of no whole number of windows, if it is padded only after it was shifted."""
    rolls, subject = rolls_of(evidence.baseline), evidence.subject
    keys = {attention.key.shape[1] for attention in evidence.attentions}
    if not rolls or len(keys) != 1 or not subject.convention.is_image:
        return
    side = 2 * math.isqrt(min(keys)) + 1
    inputs = subject.draw(2, side * (side + 1))
    larger = attempt(lambda: subject.record(inputs))
    if isinstance(larger, Exception):
        return
    steps = larger.trace.steps
    padding = next((it for it in steps if it.operation == "pad" and _is_rolled(steps, it)), None)
    shift = _shift_of(larger, find_attentions(larger))
    if padding is None or shift is None:
        return
    axes = range(len(shift.sizes))
    reached = [_reaches_the_opposite_edge(evidence, inputs, shift, axis) for axis in axes]
    if None not in reached and any(reached):
        yield Finding(
            "weights-wrong",
            "bug" if mask_definition(subject.callee) is not None else "suspicious",
            "The image is shifted first and padded afterwards, so that the pixels that the shift brings to the other "
            "edge lie before the padding, and see those beside them, which are far away.",
            f"an image of {times(shift.sizes)} pixels in windows of {shift.window}",
            SourceLine.of(padding),
            "Pad the image to a whole number of windows first, and shift it then.",
        )


def _is_rolled(steps: Sequence[Step], padding: Step) -> bool:
    """Check whether a step pads floating-point numbers that a roll has shifted."""
    before = ancestors(steps, padding)
    return padding.dtype.is_floating_point and any(steps[it].operation == "roll" for it in before)


def _shift_of(run: Observation, attentions: Sequence[RecordedAttention]) -> _Shift | None:
    """Return the only shift of a run; None if there is none, or if an attention is not within small windows."""
    T = run.inputs.sizes[1]
    rolls = [it for it in rolls_of(run) or [] if it.step.dtype.is_floating_point]  # of no mask
    found = [tuple(it.step.shape[axis] for axis in it.axes) for it in rolls]
    keys = {attention.key.shape[1] for attention in attentions}
    if not 1 <= len(found) <= 2 or len(set(found)) != 1 or len(keys) != 1:
        return None
    sizes, window = found[0], round(min(keys) ** (1 / len(found[0])))
    fits = window ** len(sizes) == min(keys) and min(sizes) >= 2 * window
    return _Shift(sizes, window) if fits and torch.Size(sizes).numel() == T else None


def _reaches_the_opposite_edge(
    evidence: Evidence, inputs: Inputs, shift: _Shift, axis: int
) -> bool | None:
    """Check whether a pixel at the first edge along an axis changes one at the last; None if it changes them all."""
    place = [size // 2 for size in shift.sizes]
    place[axis] = 0
    index = 0
    for size, position in zip(shift.sizes, place, strict=True):
        index = index * size + position
    before, after = (evidence.subject.run(it).detach() for it in (inputs, inputs.changed(0, index)))
    changed = evidence.differs(before, after)[0].view(shift.sizes)
    if changed.all():
        return None
    return bool(changed.narrow(axis, shift.sizes[axis] - shift.window, shift.window).any())
