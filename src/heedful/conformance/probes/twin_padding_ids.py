"""Probe: of two ids of padding that a constructor keeps, each is compared with the tokens of its own side."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from heedful.conformance.calling.target import is_from_torch
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import ParsedSource, SourceLine, parsed, parsed_file
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding

SIDES: tuple[tuple[str, str], ...] = (
    *(("src", "trg"), ("src", "tgt"), ("source", "target")),
    *(("enc", "dec"), ("encoder", "decoder"), ("input", "output")),
)
"""Words for the two texts of a translation in the names of attributes."""


@probe("padding-leak")
def twin_padding_ids(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for an id of padding that nothing reads, as `trg_pad_idx`, where `src_pad_idx` stands in its place."""
    module = evidence.subject.module
    own = [] if module is None else [it for it in module.modules() if not is_from_torch(it)]
    for cls in dict.fromkeys(map(type, own)):
        source = parsed(cls)
        if source is None:
            continue
        for unread, twin, side in _unread_ids(cls, source):
            place = _line_mistaking(source, twin, side)
            if place is not None:
                yield Finding(
                    "padding-leak",
                    "bug",
                    f"{cls.__name__} keeps {unread}, and nothing reads it; {twin} stands in its place here.",
                    ANY_CALL,
                    place,
                    f"Compare these ids with self.{unread}.",
                )
                return


def _unread_ids(cls: type, source: ParsedSource) -> Iterator[tuple[str, str, str]]:
    """Yield the ids of padding that a class keeps and nothing in its file reads, each with its twin and its side."""
    parameters = [it for it in inspect.signature(cls).parameters if "pad" in it]
    whole = parsed_file(source.file)
    nodes = () if whole is None else whole.nodes
    read = {
        it.attr for it in nodes if isinstance(it, ast.Attribute) and isinstance(it.ctx, ast.Load)
    }
    kept = {
        it.attr for it in nodes if isinstance(it, ast.Attribute) and isinstance(it.ctx, ast.Store)
    }
    for name in (it for it in parameters if it in kept - read):
        for side, other in (pair for both in SIDES for pair in (both, both[::-1])):
            twin = re.sub(rf"(?<![a-z]){side}(?![a-z])", other, name)
            if twin != name and twin in read:
                yield name, twin, side


def _line_mistaking(source: ParsedSource, twin: str, side: str) -> SourceLine | None:
    """Return the statement that compares tokens of one side with the other side's id; None if there is none."""
    for statement in source.statements():
        if not isinstance(statement, ast.Assign | ast.Return | ast.AnnAssign):
            continue
        nodes = list(ast.walk(statement))
        reads = any(isinstance(it, ast.Attribute) and it.attr == twin for it in nodes)
        compared = any(isinstance(it, ast.Compare) for it in nodes)
        named = {word for it in nodes if isinstance(it, ast.Name) for word in it.id.split("_")}
        if reads and compared and side in named:
            return source.line_of(statement)
    return None
