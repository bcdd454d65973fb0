"""Probe: a target that must be given keys and values, or the outputs of an encoder, reads them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from heedful.conformance.calling import names
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.call_sites import lines_calling
from heedful.conformance.recording.dataflow import steps_from_projection
from heedful.conformance.recording.source import SourceLine, parsed
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.root_causes import NOTHING_READS

IGNORED: re.Pattern[str] = re.compile(
    r"\b(unused|ignored?s?|not (be )?used|compatib\w+|only self)\b"
)
"""What code says in words if its signature is that of another class."""


@probe("context-wrong")
def unread_operands(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Look for the required arguments of keys, values and encoder outputs in the code.

    One of keys and values may be for compatibility.
    """
    target, callee = evidence.subject.target, evidence.subject.callee
    source = parsed(target.forward)
    read = set(target.required) if source is None else _names_read(source.tree)
    if not evidence.attentions or IGNORED.search(prose_about(callee)):
        return
    memory = next((it for it in target.required if it in names.MEMORIES and it not in read), "")
    if memory:
        yield _unread_memory(evidence, memory)
        return
    operands = [it for it in target.required if it in (*names.KEYS, *names.VALUES)]
    unread = [it for it in operands if it not in read]
    if len(unread) < 2:
        return
    path = steps_from_projection(evidence.baseline, evidence.attentions[0].key_source)
    yield Finding(
        "context-wrong",
        "bug",
        f"{NOTHING_READS} {' and '.join(unread)}: keys and values are computed from the queries' tokens.",
        "",
        SourceLine.of(next(iter(path), None)),
        f"Project the keys from {unread[0]}, and the values from {unread[1]}.",
    )


def _unread_memory(evidence: Evidence, memory: str) -> Finding:
    """Return the finding on encoder outputs that nothing reads, on the line that calls the last attention."""
    module, scores = evidence.subject.module, evidence.attentions[-1].scores_step
    parts = scores.module.split(".") if module is not None and scores.module else []
    paths = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    calls = (lines_calling(module, path) for path in paths if module is not None)
    called = next((lines[-1] for lines in calls if lines), None)
    return Finding(
        "context-wrong",
        "bug",
        f"{NOTHING_READS} {memory}: the last attention compares the tokens with themselves, and none attends to it.",
        "",
        called or SourceLine.of(scores),
        f"Compute the keys and values of the second attention from {memory}.",
    )


def _names_read(tree: ast.Module) -> set[str]:
    """Return the variables that the statements of a function name, without its parameters."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
