"""The names of axes: which axis of each tensor counts tokens, keys, heads, features and sequences.

The tokens of the input are known. A rule says where their axis goes: a product keeps the letters' axes, and a move
keeps an axis if its coordinate still runs along one axis alone, whatever was viewed, split and transposed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BATCH, HEAD, TOKEN, KEY, FEATURE, UNKNOWN = "batch", "head", "token", "key", "feature", ""

Axes = tuple[str, ...]


def axes_of_input(name: str, shape: Sequence[int], tokens: int, *, ids: bool) -> Axes:
    """Return the axes of an argument of a call: (…, T, d), or (…, T) if it holds ids, or (…, T, T) if it holds scores.

    Args:
        name: Its name, which says whether a square matrix holds scores.
        shape: Its shape.
        tokens: The number of tokens, T.
        ids: Whether its entries are whole numbers.
    """
    names = [UNKNOWN] * len(shape)
    last = len(shape) - (1 if ids else 2)
    if last >= 0 and shape[last] == tokens:
        names[last] = TOKEN
        if not ids:
            scores = shape[-1] == tokens and any(
                word in name for word in ("score", "weight", "attn", "mask")
            )
            names[-1] = KEY if scores else FEATURE
        names[:last] = [BATCH] + [HEAD] * (last - 1) if last else []
    return tuple(names)


def axes_of_parameter(shape: Sequence[int]) -> Axes:
    """Return the axes of a parameter: features."""
    return (FEATURE,) * len(shape)


def axes_of_product(left: Axes, right: Axes, letters: dict[str, str], *, linear: bool) -> Axes:
    """Return the axes of a product. Tokens of the right operand become keys if the left one has tokens, too."""
    names: list[str] = []
    for letter in letters["result"]:
        one = _named(left, letters["left"], letter)
        other = _named(right, letters["right"], letter)
        name = one or other
        if not one and other == TOKEN and TOKEN in names:
            name = KEY
        names.append(FEATURE if linear and letter == letters["result"][-1] else name)
    return tuple(names)


def _named(axes: Axes, letters: str, letter: str) -> str:
    return axes[letters.index(letter)] if letter in letters else UNKNOWN


def axes_of_elementwise(operands: Sequence[Axes], rank: int) -> Axes:
    """Return the axes of an operation entry by entry, whose operands are aligned at the end."""
    names = [UNKNOWN] * rank
    for axes in operands:
        for i, name in enumerate(axes):
            place = rank - len(axes) + i
            names[place] = names[place] or name
    return tuple(names)


def axes_of_move(axes: Axes, shape: Sequence[int], origin: Tensor) -> Axes:
    """Return the axes after a move, from where each entry came from."""
    names = [UNKNOWN] * origin.dim()
    coordinates = torch.unravel_index(origin, tuple(shape)) if origin.numel() else ()
    for name, coordinate in zip(axes, coordinates, strict=False):
        if name not in (UNKNOWN, FEATURE):
            for place in range(origin.dim()):
                if names[place] == UNKNOWN and _runs_along(coordinate, place):
                    names[place] = name
                    break
    if FEATURE in axes:  # a split of the features makes heads; those within a head come last
        unknown = [i for i, name in enumerate(names) if name == UNKNOWN and origin.shape[i] > 1]
        if unknown:
            names[unknown[-1]] = FEATURE
        torn = TOKEN in axes and TOKEN not in names
        for place in [] if torn else unknown[:-1]:
            names[place] = HEAD
    if names and names[0] == UNKNOWN and origin.shape[0] == 1:
        names[0] = BATCH
    return tuple(names)


def is_torn(before: Axes, after: Axes, shape: Sequence[int], moved: Sequence[int]) -> bool:
    """Return whether a move has put other things where tokens seem to be: an axis as long, which does not count them.

    Args:
        before: The axes before the move.
        after: The axes after it.
        shape: The shape before the move.
        moved: The shape after it.
    """
    if (
        TOKEN not in before
        or TOKEN in after
        or KEY in after
        or math.prod(shape) != math.prod(moved)
    ):
        return False
    tokens = shape[before.index(TOKEN)]
    return tokens > 1 and tokens in moved[:-1]


def _runs_along(coordinate: Tensor, place: int) -> bool:
    """Return whether a coordinate increases along one axis by a constant start, and along no other."""
    length = coordinate.shape[place]
    first = coordinate.flatten()[0]
    ramp = torch.arange(length) + first
    view = [1] * coordinate.dim()
    view[place] = length
    return length > 1 and bool((coordinate == ramp.reshape(view)).all())


def guessed_axes(shape: Sequence[int], tokens: int) -> Axes:
    """Return the axes of a tensor without a rule, by which of them are as long as there are tokens."""
    names = [UNKNOWN] * len(shape)
    places = [i for i, length in enumerate(shape) if length == tokens] if tokens > 1 else []
    if not places:
        return tuple(names)
    if len(shape) == 1:
        return (KEY,)
    if len(places) > 1 and places[-1] == len(shape) - 1:
        names[places[-2]], names[-1] = TOKEN, KEY
    else:
        names[places[-1]] = TOKEN
        if names[-1] == UNKNOWN:
            names[-1] = FEATURE
    rest = [i for i, name in enumerate(names) if name == UNKNOWN]
    for i, name in zip(rest, (BATCH, HEAD) if len(shape) > 2 else (), strict=False):
        names[i] = name
    return tuple(names)
