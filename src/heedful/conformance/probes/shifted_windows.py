"""Probe: windows that a shift wraps around the edges of an image do not let opposite edges see each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import mask_building_line
from heedful.conformance.evidence.rolls import rolls_of
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.definitions import mask_definition
from heedful.conformance.recording.source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding

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


@probe("mask-broadcast", "mask-unused")
def shifted_windows(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change a pixel at each edge of an image whose windows are shifted, and see whether the opposite edge changes."""
    shift = _shift_of(evidence)
    if shift is None or MEANT.search(prose_about(evidence.subject.callee)):
        return
    reached = [
        _reaches_the_opposite_edge(evidence, shift, axis) for axis in range(len(shift.sizes))
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


def _shift_of(evidence: Evidence) -> _Shift | None:
    """Return the only shift of the run; None if there is none, or if an attention is not within small windows."""
    T = evidence.inputs.sizes[1]
    rolls = rolls_of(evidence.baseline) or []
    found = [tuple(it.step.shape[axis] for axis in it.axes) for it in rolls]
    keys = {attention.key.shape[1] for attention in evidence.attentions}
    if not 1 <= len(found) <= 2 or len(set(found)) != 1 or len(keys) != 1:
        return None
    sizes, window = found[0], round(min(keys) ** (1 / len(found[0])))
    fits = window ** len(sizes) == min(keys) and min(sizes) >= 2 * window
    return _Shift(sizes, window) if fits and torch.Size(sizes).numel() == T else None


def _reaches_the_opposite_edge(evidence: Evidence, shift: _Shift, axis: int) -> bool | None:
    """Check whether a pixel at the first edge along an axis changes one at the last; None if it changes them all."""
    place = [size // 2 for size in shift.sizes]
    place[axis] = 0
    index = 0
    for size, position in zip(shift.sizes, place, strict=True):
        index = index * size + position
    before, after = (
        evidence.subject.run(it).detach()
        for it in (evidence.inputs, evidence.inputs.changed(0, index))
    )
    changed = evidence.differs(before, after)[0].view(shift.sizes)
    if changed.all():
        return None
    return bool(changed.narrow(axis, shift.sizes[axis] - shift.window, shift.window).any())
