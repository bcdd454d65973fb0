"""Conventions in which one argument is a decoder's state, if no call with sequences alone works."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from torch import Tensor

from heedful.conformance.calling.candidates import widths_of
from heedful.conformance.calling.convention import CallingConvention
from heedful.conformance.calling.conventional import WIDTH
from heedful.conformance.calling.layouts import likely_layouts
from heedful.conformance.calling.roles import one_vector
from heedful.conformance.calling.target import Target

MAX_WIDTHS = 3  # the number of widths of which pairs are tried


def with_a_state(
    target: Target, conventions: Sequence[CallingConvention]
) -> Iterator[CallingConvention]:
    """Yield the conventions of several sequences with one vector for each sequence in place of one of them.

    The vector has an axis for its one token, or none. It may be joined to each key, so that the first layer takes the
    widths of both together. Such a convention is a guess.
    """
    several = {it.names: it for it in reversed(conventions) if len(it.names) > 1 and it.batched}
    for base in several.values():
        for layout in likely_layouts(target.callee).tokens:
            for state in base.names:
                others = tuple(name for name in base.names if name != state)
                for width, other in _widths(target):
                    for vector in _vectors(width):
                        yield replace(
                            base,
                            layout=layout,
                            names=others,
                            features=(other,),
                            constants={**base.constants, state: vector},
                            same_tokens=True,
                            guessed=True,
                            other_features={},
                        )


def _widths(target: Target) -> Iterator[tuple[int, int]]:
    """Yield pairs of the width of a state and that of a key: equal ones first, then those that make up a third one."""
    module = target.module
    widths = [WIDTH] if module is None else widths_of(module)[:MAX_WIDTHS]
    yield from ((width, width) for width in widths)
    yield from ((one, both - one) for both, one in permutations(widths, 2) if both > one + 1)


def _vectors(width: int) -> Iterator[Callable[..., Tensor]]:
    """Yield functions of (B, T, dtype) that draw a vector for each sequence: (B, C), (B, 1, C) and (1, B, C)."""
    vector = one_vector(width)
    yield vector
    for axis in (1, 0):
        yield lambda *sizes, axis=axis: vector(*sizes).unsqueeze(axis)
