"""Probe: feature maps that are higher than wide work like those that are wider than high."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.failures import is_stated
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine, functions_around
from heedful.conformance.reporting.finding import Finding

OF_FIXED_SIDES = "Given normalized_shape="
"""How PyTorch's error begins if a norm over several axes meets other sizes than it was built for."""
OF_SQUARES: re.Pattern[str] = re.compile(r"\bisqrt\(|\bint\(.*(sqrt\(|\*\* 0\.5)")
SIDE_TWICE: re.Pattern[str] = re.compile(
    r"(?<![\w.])([A-Za-z_][\w.]*(?:\[-?\d\])?), *\1(?![\w.\[])"
)
"""One size in the place of both sides, as in `reshape(B, -1, x.shape[-1], x.shape[-1])`."""


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
        line = raising_line(error) if isinstance(error, Exception) else None
        if not isinstance(error, Exception) or line is None or is_stated(error):
            continue  # without a line, the target ran, and its result is not understood
        if (works is None and not SIDE_TWICE.search(line.source)) or _is_for_squares(line):
            continue  # it may be made for square maps
        if not str(error).startswith(OF_FIXED_SIDES):
            other, another = works or (side, side)
            yield Finding(
                "length-dependent",
                "bug",
                f"With {height} × {width} pixels the target raises {describe_exception(error)}; with {other} × "
                f"{another} it works.",
                f"B = {B}, {height} × {width} pixels",
                line,
                "Take height and width for what they are, each in its place.",
            )
            return


def _is_for_squares(line: SourceLine) -> bool:
    """Check whether the function around a line computes a side from the number of pixels."""
    return any(OF_SQUARES.search(ast.unparse(it)) for it in functions_around(line))


def _outcome(evidence: Evidence, B: int, sides: tuple[int, int]) -> Tensor | Exception:
    """Return the output for maps of given sides, or the exception."""
    convention = replace(evidence.subject.convention, grid=sides, fixed_sizes=None)
    subject = replace(evidence.subject, convention=convention)
    return attempt(lambda: subject.run(subject.draw(B, math.prod(sides))).detach())
