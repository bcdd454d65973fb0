"""Probe: the cache of the values holds the values, also on lines that no call of the check reaches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from types import FunctionType

from heedful.conformance.calling import names
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine, nodes_of
from heedful.conformance.recording.target_source import own_functions_of
from heedful.conformance.reporting.finding import ANY_CALL, Finding


@probe("cache-mismatch")
def cached_values(evidence: Evidence) -> Iterator[Finding]:
    """Search for two statements in a row that put the same variable into the caches of the keys and of the values."""
    for function in own_functions_of(evidence.subject.callee):
        yield from _mistaken_in(function)


def _mistaken_in(function: FunctionType) -> Iterator[Finding]:
    for node in nodes_of(function):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for one, other in pairwise(block if isinstance(block, list) else ()):
                (key_cache, kept), (value_cache, again) = _filled(one), _filled(other)
                if (key_cache, value_cache) in names.CACHE_PAIRS and kept and kept == again:
                    yield Finding(
                        "cache-mismatch",
                        "bug",
                        f"{kept!r} is put into both {key_cache} and {value_cache}: cached values are keys.",
                        ANY_CALL,
                        SourceLine.at(function.__code__.co_filename, other.lineno),
                        "Put the values into their cache.",
                    )


def _filled(statement: ast.stmt) -> tuple[str, str]:
    """Return the attribute that a statement assigns, or assigns into, and the variable; "" if it does not."""
    match statement:
        case ast.Assign(
            targets=[
                ast.Attribute(attr=cache) | ast.Subscript(value=ast.Attribute(attr=cache)),
            ],
            value=ast.Name(id=variable),
        ):
            return cache, variable
        case _:
            return "", ""
