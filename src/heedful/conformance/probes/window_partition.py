"""Probe: the windows of an image are squares of pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

RESHAPING: tuple[str, ...] = ("view", "reshape", "rearrange")


@probe("context-wrong")
def window_partition(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change the first pixel of an image that is cut into windows, and see which pixels change with it."""
    T = evidence.inputs.sizes[1]
    sides = {math.isqrt(attention.key.shape[1]) for attention in evidence.attentions}
    if not evidence.subject.convention.is_image or len(sides) != 1:
        return
    side, grid = sides.pop(), evidence.subject.convention.grid_of(T)
    pixels = side**2
    if (
        side < 2
        or grid[-1] <= side
        or min(grid) < side
        or not _states_windows_of(evidence.subject.module, side)
    ):
        return
    before, after = (
        evidence.subject.run(it).detach() for it in (evidence.inputs, evidence.inputs.changed(0, 0))
    )
    changed = evidence.differs(before, after)[0]
    if changed[:pixels].all() and not changed[pixels:].any():
        yield Finding(
            "context-wrong",
            "bug",
            f"A window holds {pixels} pixels one after the other in memory, not a square of {side} × {side}.",
            f"an image of {' × '.join(map(str, grid))} pixels",
            SourceLine.of(_partition(evidence, pixels)),
            "Permute (B, rows, side, columns, side, C) to (B, rows, columns, side, side, C) before the last view.",
        )


def _states_windows_of(module: nn.Module | None, side: int) -> bool:
    """Check whether an attribute of a module, or of a part of it, says that windows have so many pixels on a side."""
    return any(
        "window" in name and value in (side, (side, side), [side, side])
        for part in (() if module is None else module.modules())
        for name, value in vars(part).items()
        if isinstance(value, int | tuple | list)
    )


def _partition(evidence: Evidence, pixels: int) -> Step | None:
    """Return the first step that has an entry for each window."""
    B, T = evidence.inputs.sizes
    return next(
        (
            step
            for step in evidence.baseline.trace
            if step.operation in RESHAPING and step.shape[:1] == (B * T // pixels,)
        ),
        None,
    )
