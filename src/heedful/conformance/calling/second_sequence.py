"""Decide whether a second argument for tokens takes a second sequence, beside one whose tokens already mix."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.convention import MEMORY, Constants
from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.influence import influences
from heedful.conformance.calling.roles import OfMemory

TOKENS = 5


def with_second_sequence(caller: Caller) -> Caller:
    """Return a caller that holds the second sequence fixed if the first one attends to itself.

    Otherwise, as in cross-attention alone, both arguments keep the same tokens: then all that a check asks about
    queries and keys can be asked.
    """
    convention = caller.convention
    second = [
        name
        for name in convention.names[1:]
        if name not in (*names.QUERIES, *names.KEYS, *names.VALUES)
    ]
    if len(convention.names) != 2 or not second or convention.vocabulary or convention.fixed_sizes:
        return caller
    for constants in (*_documented_masks(caller, second[0]), *_shorter_masks(convention.constants)):
        held = replace(
            convention, names=convention.names[:1], constants={**constants, second[0]: MEMORY}
        )
        candidate = replace(caller, convention=held)
        if _mixes(candidate):
            return candidate
    return caller


def _documented_masks(caller: Caller, second: str) -> Iterator[Constants]:
    """Yield the constants with those made for the second sequence whose documentation names it, as (B, text_len)."""
    constants = caller.convention.constants
    said = documented_arguments(caller.target.callee)
    pattern = re.compile(rf"[(\[][^)\]]*\b{re.escape(second)}")
    of_second = [
        it
        for it, value in constants.items()
        if callable(value) and pattern.search(said.get(it, ""))
    ]
    if of_second:
        yield {**constants, **{name: OfMemory(constants[name]) for name in of_second}}


def _shorter_masks(constants: Constants) -> Iterator[Constants]:
    """Yield the constants, and those in which one or more of the last ones are for the second sequence."""
    yield constants
    varying = [name for name, value in constants.items() if callable(value)]
    for count in range(1, len(varying) + 1):
        yield {**constants, **{name: OfMemory(constants[name]) for name in varying[-count:]}}


def _mixes(caller: Caller) -> bool:
    """Check whether a change of the first token reaches another row."""
    inputs = caller.draw(2 if caller.batched else 1, TOKENS)
    return influences(caller, inputs, 0, rows=(0, slice(1, None))) is True
