"""Probe: feature maps that are higher than wide work like those that are wider than high."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.failures import is_stated
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Finding

OF_FIXED_SIDES = "Given normalized_shape="
"""How PyTorch's error begins if a norm over several axes meets other sizes than it was built for."""


@probe("length-dependent")
def image_sides(evidence: Evidence) -> Iterator[Finding]:
    """Run a map that has one column more than rows, and one that has one row more than columns.

    If square maps of these sides do not work either, the number of rows or that of columns is fixed.
    """
    subject = evidence.subject
    B, T = evidence.inputs.sizes
    side = math.isqrt(T)
    if not subject.convention.is_image or subject.convention.guessed or side < 2:
        return
    outcomes = {
        sides: _outcome(evidence, B, sides) for sides in ((side, side + 1), (side + 1, side))
    }
    if all(isinstance(it, Tensor) for it in outcomes.values()):
        return
    squares = [_outcome(evidence, B, (n, n)) for n in (side, side + 1)]
    if not all(isinstance(it, Tensor) for it in squares):
        return
    works = next((sides for sides, it in outcomes.items() if isinstance(it, Tensor)), None)
    for (height, width), error in outcomes.items():
        if works is None or not isinstance(error, Exception) or is_stated(error):
            continue
        line = raising_line(error)  # None if the target ran, and its result is not understood
        if line is not None and not str(error).startswith(OF_FIXED_SIDES):
            yield Finding(
                "length-dependent",
                "bug",
                f"With {height} × {width} pixels the target raises {describe_exception(error)}; with {works[0]} × "
                f"{works[1]} it works.",
                f"B = {B}, {height} × {width} pixels",
                line,
                "Take height and width for what they are, each in its place.",
            )


def _outcome(evidence: Evidence, B: int, sides: tuple[int, int]) -> Tensor | Exception:
    """Return the output for maps of given sides, or the exception."""
    convention = replace(evidence.subject.convention, grid=sides, fixed_sizes=None)
    subject = replace(evidence.subject, convention=convention)
    return attempt(lambda: subject.run(subject.draw(B, math.prod(sides))).detach())
