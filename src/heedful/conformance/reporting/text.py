"""The report as text: in colour on a terminal, plain where it is piped."""

from __future__ import annotations

import io
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.catalogue import CATALOGUE, remedy_of
from heedful.conformance.reporting.finding import LEVELS, Fact, Finding
from heedful.screen import console_for, printed

if TYPE_CHECKING:
    from heedful.conformance.reporting.report import Report

INDENT = 4
SOURCE_WIDTH = 84
STYLES = {"bug": "bold red", "suspicious": "yellow", "convention": "cyan", "not-testable": "dim"}


def as_text(report: Report, stream: TextIO | None = None) -> str:
    """The whole report, in the colours that the stream can show; plain without one."""
    return _on_console(_report(report), stream)


def finding_as_text(finding: Finding) -> str:
    """One finding, plain: its name, proof, case, place and remedy."""
    return _on_console(_finding(finding), None)


def catalogue_as_text(stream: TextIO) -> str:
    """Every finding's name and meaning, by level."""
    table = Table.grid(padding=(0, 2))
    for level in LEVELS:
        for entry in CATALOGUE.values():
            if entry.level == level:
                table.add_row(Text(entry.name, STYLES[level]), Text(level, "dim"), entry.meaning)
    return _on_console(table, stream)


def shown_path(file: str) -> str:
    """A file as one would name it here: from the working folder or a folder of packages, if it lies below."""
    path = Path(file)
    packages = sorted(map(Path, filter(None, sys.path)), key=lambda folder: -len(folder.parts))
    for folder in (Path.cwd(), *packages):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return file


def _on_console(content: RenderableType, stream: TextIO | None) -> str:
    console = console_for(stream or io.StringIO())
    console.print(content)
    return printed(console)


def _report(report: Report) -> RenderableType:
    parts: list[RenderableType] = [_verdict(report)]
    for finding in report.findings:
        parts += [Text(), _finding(finding, report.expected_failures.get(finding.name))]
    if report.no_longer_failing:
        parts.append(Text())
    parts += [
        Text(f"{name} no longer fails; it was expected to: {report.expected_failures[name]}", "yellow")
        for name in report.no_longer_failing
    ]  # fmt: skip
    if report.facts:
        parts += [Text(), _facts(report.facts)]
    return Group(*parts)


def _verdict(report: Report) -> Text:
    seconds = sum(run.seconds for run in report.probes)
    style = "bold green" if report.ok else STYLES["bug"]
    count = f"{len(report.probes)} probes, {seconds:.1f} s"
    return Text.assemble((report.target, "bold"), ": ", (report.summary, style), f"  ({count})")


def _finding(finding: Finding, expected: str | None = None) -> RenderableType:
    head = Text.assemble((finding.name, STYLES[finding.level]), (f"  {finding.level}", "dim"))
    if expected is not None:
        head.append(f", expected: {expected}", "dim")
    details = Table.grid(padding=(0, 2))
    details.add_column(style="dim", no_wrap=True)
    details.add_column(overflow="fold")
    if finding.place is not None:
        details.add_row("line", _place(finding.place))
    if finding.case:
        details.add_row("case", Text(finding.case))
    details.add_row("remedy", Text(remedy_of(finding)))
    return Group(head, Padding(Group(Text(finding.proof), details), (0, 0, 0, INDENT)))


def _place(place: SourceLine) -> Text:
    source = textwrap.shorten(place.source, SOURCE_WIDTH, placeholder=" …")
    return Text.assemble(f"{shown_path(place.file)}:{place.line}  ", (source, "bold"))


def _facts(facts: tuple[Fact, ...]) -> Table:
    """One row a name; what a target does in two ways is said in one line."""
    values: dict[str, list[str]] = {}
    for fact in facts:
        values.setdefault(fact.name, []).append(fact.value)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    for name, said in values.items():
        table.add_row(name, Text("; ".join(dict.fromkeys(said))))
    return table
