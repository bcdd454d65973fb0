"""Decide whether the first of several arguments takes one vector for each sequence, such as the state of a decoder."""

from __future__ import annotations

from dataclasses import replace

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.candidates import MAX_WIDTHS, of_one_query
from heedful.conformance.calling.influence import mixes_sequences

# With two sequences alone, heads that are merged in a wrong order, which is a bug to be found, do not mix them.
SEQUENCES, TOKENS = 2, 5


def with_one_query(caller: Caller) -> Caller:
    """Return a caller that passes one vector for each sequence, if only then the sequences do not mix.

    Where one vector is expected, a sequence of them may be broadcast against other sequences, which is no fault of the
    target.
    """
    convention = caller.convention
    several = len(convention.names) > 1 and convention.layout == "(B, T, C)"
    if not several or convention.fixed_sizes or _mixes(caller) is not True:
        return caller
    query = next(iter(convention.names))
    for base in of_one_query(caller.module, convention.names, MAX_WIDTHS, query):
        constants = {**convention.constants, **base.constants}
        other = replace(base, constants=constants, visible_keys=convention.visible_keys)
        for pooled in (True, False):
            candidate = replace(caller, convention=replace(other, pooled=pooled))
            if _mixes(candidate) is False:
                return candidate
    return caller


def _mixes(caller: Caller) -> bool | None:
    return mixes_sequences(caller, caller.draw(SEQUENCES, TOKENS))
