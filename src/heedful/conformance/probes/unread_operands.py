"""Probe: a target that must be given keys and values reads one of them, at least."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from heedful.conformance.calling import names
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import steps_from_projection
from heedful.conformance.recording.source import SourceLine, parsed, prose_about
from heedful.conformance.reporting.finding import Fact, Finding

IGNORED: re.Pattern[str] = re.compile(
    r"\b(unused|ignored?s?|not (be )?used|compatib\w+|only self)\b"
)
"""What code says in words if its signature is that of another class."""


@probe("context-wrong")
def unread_operands(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Look for the required arguments of keys and of values in the code. One of two may be for compatibility."""
    target, callee = evidence.subject.target, evidence.subject.callee
    operands = [it for it in target.required if it in (*names.KEYS, *names.VALUES)]
    source = parsed(target.forward)
    unread = [] if source is None else [it for it in operands if it not in _names_read(source.tree)]
    if len(unread) < 2 or not evidence.attentions or IGNORED.search(prose_about(callee)):
        return
    path = steps_from_projection(evidence.baseline, evidence.attentions[0].key_source)
    yield Finding(
        "context-wrong",
        "bug",
        f"Nothing reads {' and '.join(unread)}: keys and values are computed from the queries' tokens.",
        "",
        SourceLine.of(next(iter(path), None)),
        f"Project the keys from {unread[0]}, and the values from {unread[1]}.",
    )


def _names_read(tree: ast.Module) -> set[str]:
    """Return the variables that the statements of a function name, without its parameters."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
