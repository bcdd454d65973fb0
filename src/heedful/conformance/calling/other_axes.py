"""Decide by behavior which axes hold sequences and tokens, where a call that works may have them in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.axes import HEADS, TOKENS, mixing_axes
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.layouts import likely_layouts

SEQUENCES, TOKENS_TRIED = 2, 12  # 3 × 4 pixels
SEQUENCE, IMAGE = "(B, T, C)", "(B, Y, X, C)"
PART, PARTS = 1, "PG"  # the size and the letters of axes that hold neither tokens nor sequences


def with_axes_by_behavior(caller: Caller) -> Caller:
    """Return a caller whose axes are in another order, if only that one fits what mixes, and nothing states the order.

    Tokens mix, and sequences and heads do not. If they seem to, our guess of the order may be wrong, which is no fault
    of the target.
    """
    convention = caller.convention
    known = convention.layout in (SEQUENCE, IMAGE, *HEADS)
    if not known or convention.fixed_sizes or convention.vocabulary or convention.pooled:
        return caller
    layouts = likely_layouts(caller.target.callee)
    declared = layouts.heads_declared if convention.layout in HEADS else layouts.declared
    if convention.layout != IMAGE and declared:
        return caller
    mixing = _mixing(caller)
    layout = convention.layout
    if layout == IMAGE:
        layout = _of_grid(mixing, layouts.batch_axis)
    elif layout == SEQUENCE and mixing == {0}:
        layout = "(T, B, C)"
    elif layout in HEADS and mixing == {layout[1:].split(", ").index("H")}:
        layout = HEADS[1 - HEADS.index(layout)]
    return caller if layout in ("", convention.layout) else _in_layout(caller, layout)


def _mixing(caller: Caller) -> set[int]:
    """Return the axes along which a change at one index reaches the others; the last one is not asked about."""
    arguments = caller.arguments(caller.draw(SEQUENCES, TOKENS_TRIED))
    names = caller.convention.names
    axes = range(arguments[names[0]].dim() - 1)
    found = attempt(lambda: mixing_axes(caller.target, arguments, names, axes))
    return set() if isinstance(found, Exception) else found


def _of_grid(mixing: set[int], batch: int | None) -> str:
    """Return the layout of tokens of four axes with features last; "" if what mixes fits none.

    Args:
        mixing: Which of the first three axes mix.
        batch: The axis that the source calls the batch, or a feature map's; None if it names none.
    """
    still = [axis for axis in range(3) if axis not in mixing]
    batch = batch if batch is not None else next(iter(still), None)
    tokens: Sequence[int] = sorted(mixing - {batch})
    if batch is None or batch in mixing or not tokens:
        return ""
    letters = {batch: "B", 3: "C"} | dict(zip(tokens, TOKENS[len(tokens) - 1], strict=True))
    rest = (axis for axis in range(3) if axis not in letters)
    letters |= dict(zip(rest, PARTS, strict=False))
    return f"({', '.join(letters[axis] for axis in range(4))})"


def _in_layout(caller: Caller, layout: str) -> Caller:
    """Return a caller with another layout if its calls work, or else the same one."""
    parts = sum(letter in layout for letter in PARTS)
    features = (*(PART,) * parts, *caller.convention.features)
    if layout in HEADS:
        features = caller.convention.features
    candidate = replace(
        caller, convention=replace(caller.convention, layout=layout, features=features)
    )
    with torch.no_grad():
        rows = attempt(lambda: candidate.run(candidate.draw(SEQUENCES, TOKENS_TRIED)))
    return candidate if isinstance(rows, Tensor) else caller
