"""The report of a check as text: in color on a terminal, plain otherwise."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from typing import TextIO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from heedful.conformance.recording.coverage import Coverage, MissedLines
from heedful.conformance.recording.location import location_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.catalogue import CATALOGUE, remedy_of
from heedful.conformance.reporting.finding import LEVELS, Fact, Finding
from heedful.conformance.reporting.result import CheckResult
from heedful.screen import console_for, printed, without_controls

INDENT = 4
SOURCE_WIDTH = 84
MAX_MISSED = 5
STYLES: dict[str, str] = {
    "bug": "bold red",
    "suspicious": "yellow",
    "convention": "cyan",
    "not-testable": "dim",
}

DIFF_STYLES: dict[str, str] = {"+": "green", "-": "red", "@": "cyan"}


def as_text(result: CheckResult, stream: TextIO | None = None) -> str:
    """Return the whole report, in the colors that a stream can show; plain without a stream."""
    console = console_for(stream or io.StringIO())
    console.print(_result(result))
    for part in _fixes(result):
        console.print(part, soft_wrap=True)  # a folded diff could not be applied
    return printed(console)


def finding_as_text(finding: Finding) -> str:
    """Return one finding as plain text: its name, proof, line, case and remedy."""
    return _on_console(_finding(finding), None)


def catalogue_as_text(stream: TextIO) -> str:
    """Return the name and meaning of every entry of the catalogue, by level."""
    table = Table.grid(padding=(0, 2))
    for level in LEVELS:
        for entry in CATALOGUE.values():
            if entry.level == level:
                table.add_row(Text(entry.name, STYLES[level]), Text(level, "dim"), entry.meaning)
    return _on_console(table, stream)


def _on_console(content: RenderableType, stream: TextIO | None) -> str:
    console = console_for(stream or io.StringIO())
    console.print(content)
    return printed(console)


def _result(result: CheckResult) -> RenderableType:
    parts: list[RenderableType] = [_headline(result)]
    for finding in result.findings:
        parts += [Text(), _finding(finding, result.expected_failures.get(finding.name))]
    if result.no_longer_failing:
        parts.append(Text())
    for name in result.no_longer_failing:
        reason = result.expected_failures[name]
        parts.append(
            Text(f"{name} no longer fails, although it was expected to: {reason}", "yellow")
        )
    if result.facts:
        parts += [Text(), _facts(result.facts)]
    if result.coverage is not None and not result.coverage.complete:
        parts += [Text(), *map(Text, not_exercised(result.coverage, MAX_MISSED))]
    return Group(*parts)


def not_exercised(coverage: Coverage, most: int | None = None) -> list[str]:
    """Return what of a target no probe exercised, a line for each, and at most so many of missed branches."""
    texts = [_missed(lines) for lines in coverage.missed[:most]]
    if more := len(coverage.missed[len(texts) :]):
        texts.append(f"Never ran: {more} more branches (--format json lists them)")
    if coverage.never_given:
        texts.append(f"Never given: {', '.join(coverage.never_given)}")
    return texts


def _missed(lines: MissedLines) -> str:
    last = "" if lines.last == lines.place.line else f"–{lines.last}"
    branch = textwrap.shorten(lines.branch, SOURCE_WIDTH, placeholder=" …")
    text = f"Never ran: {location_of(lines.place)}{last}, {branch}"
    return f"{text}. {lines.remedy}" if lines.remedy else text


def _headline(result: CheckResult) -> Text:
    seconds = sum(run.seconds for run in result.probes)
    style = "bold green" if result.ok else STYLES["bug"]
    several = "" if len(result.probes) == 1 else "s"
    effort = f"{len(result.probes)} probe{several}, {seconds:.1f} s"
    return Text.assemble((result.target, "bold"), ": ", (result.summary, style), f"  ({effort})")


def _finding(finding: Finding, expected: str | None = None) -> RenderableType:
    title = Text.assemble((finding.name, STYLES[finding.level]), (f"  {finding.level}", "dim"))
    if expected is not None:
        title.append(f", expected: {expected}", "dim")
    details = Table.grid(padding=(0, 2))
    details.add_column(style="dim", no_wrap=True)
    details.add_column(overflow="fold")
    if finding.place is not None:
        details.add_row("line", _place(finding.place))
    if finding.case:
        details.add_row("case", Text(finding.case))
    if remedy := remedy_of(finding):
        details.add_row("remedy", Text(remedy))
    return Group(title, Padding(Group(Text(finding.proof), details), (0, 0, 0, INDENT)))


def _place(place: SourceLine) -> Text:
    source = textwrap.shorten(place.source, SOURCE_WIDTH, placeholder=" …")
    return Text.assemble(f"{location_of(place)}  ", (source, "bold"))


def _fixes(result: CheckResult) -> Iterator[RenderableType]:
    """Yield the fixes as diffs, and the names of the bugs that have none."""
    for fix in result.fixes or ():
        yield Text(f"\nfix of {fix.finding}, proved by another check:", "bold")
        for line in fix.diff.splitlines():
            yield Text(without_controls(line), DIFF_STYLES.get(line[:1], ""))
    if result.fixes is not None and result.unfixed:
        names = ", ".join(dict.fromkeys(bug.name for bug in result.unfixed))
        yield Text(f"\nNo fix was found and proved for {names}; see the remedy.")


def _facts(facts: tuple[Fact, ...]) -> Table:
    """Return a table with one row for each name, which holds all different values of that name."""
    values: dict[str, list[str]] = {}
    for fact in facts:
        values.setdefault(fact.name, []).append(fact.value)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    for name, values_of_name in values.items():
        table.add_row(name, Text("; ".join(dict.fromkeys(values_of_name))))
    return table
