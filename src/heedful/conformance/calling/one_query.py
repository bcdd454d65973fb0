"""Decide whether the first of several arguments takes one vector for each sequence, such as the state of a decoder."""

from __future__ import annotations

from dataclasses import replace

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.candidates import MAX_WIDTHS, of_one_query
from heedful.conformance.calling.influence import influences, mixes_sequences

# With two sequences alone, heads that are merged in a wrong order, which is a bug to be found, do not mix them.
SEQUENCES, TOKENS = 2, 5


def with_one_query(caller: Caller) -> Caller:
    """Return a caller that passes one vector for each sequence, if only then tokens mix and sequences do not.

    Where one vector is expected, a sequence of them may be broadcast against other sequences, or each of its tokens may
    be taken for a sequence of its own, which is no fault of the target.
    """
    convention = caller.convention
    if len(convention.names) < 2 or convention.fixed_sizes:
        return caller
    doubts = {"(B, T, C)": _mixes, "(T, C)": _keeps_tokens_apart}
    doubt = doubts.get(convention.layout)
    if doubt is None or doubt(caller) is not True:
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


def _keeps_tokens_apart(caller: Caller) -> bool:
    """Check whether neither the first nor the last token changes the row of another one."""
    inputs = caller.draw(1, TOKENS)
    others = ((0, (0, slice(1, None))), (TOKENS - 1, (0, slice(TOKENS - 1))))
    return all(influences(caller, inputs, token, rows) is False for token, rows in others)


def _mixes(caller: Caller) -> bool | None:
    return mixes_sequences(caller, caller.draw(SEQUENCES, TOKENS))
