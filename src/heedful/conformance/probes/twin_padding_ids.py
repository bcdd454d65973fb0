"""Probe: of two ids of padding that a constructor keeps, each is compared with the tokens of its own side."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torch import nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import ParsedSource, SourceLine, parsed
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
    for part in () if module is None else module.modules():
        source = parsed(type(part))
        found = None if source is None else _mistaken_id(part, source)
        if found is not None:
            unread, twin, place = found
            yield Finding(
                "padding-leak",
                "bug",
                f"{type(part).__name__} keeps {unread}, and nothing reads it; {twin} stands in its place here.",
                ANY_CALL,
                place,
                f"Compare these ids with self.{unread}.",
            )
            return


def _mistaken_id(part: nn.Module, source: ParsedSource) -> tuple[str, str, SourceLine] | None:
    """Return an id of padding that a module keeps and its class never reads, its twin, and the line that reads that."""
    attributes = (it for it in source.nodes if isinstance(it, ast.Attribute))
    read = {it.attr for it in attributes if isinstance(it.ctx, ast.Load)}
    ids = {name for name, it in vars(part).items() if "pad" in name and type(it) is int}
    for name in sorted(ids - read):
        for side, other in (pair for both in SIDES for pair in (both, both[::-1])):
            twin = re.sub(rf"(?<![a-z]){side}(?![a-z])", other, name)
            place = _line_mistaking(source, twin, side) if twin in ids & read else None
            if place is not None:
                return name, twin, place
    return None


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
