"""The report as text: in colour on a terminal, plain where it is piped."""

from __future__ import annotations

import itertools
from typing import TextIO

from rich.table import Table
from rich.text import Text

from heedful.bench import wording
from heedful.bench.judging import HOLDS, MISSED, WRONG
from heedful.bench.report import Report
from heedful.bench.running import Found
from heedful.screen import console_for, printed

WIDTH = 120
STYLES = {HOLDS: "green", MISSED: "bold yellow", WRONG: "bold red"}


def as_text(report: Report, stream: TextIO) -> str:
    """The whole report, in the colours that the stream can show: none unless it is a terminal."""
    console = console_for(stream, WIDTH)
    console.print(_machine(report))
    for group, rows in itertools.groupby(report.found, key=lambda found: found.case.group):
        console.print(Text.assemble("\n", (group, "bold")))
        console.print(_table(list(rows)))
    console.print(_verdict(report))
    return printed(console)


def _machine(report: Report) -> Text:
    machine = report.machine
    ours = (
        f"our kernel on {machine.isa}" if machine.isa else f"without our kernel: {machine.missing}"
    )
    peaks = ", ".join(
        f"{wording.PEAKS[name]} {wording.rate(name, limit)}"
        for name, limit in report.limits.items()
    )
    return Text.assemble(
        ("heedful bench", "bold"),
        f" on {machine.processor}, {machine.cores} cores, {machine.threads} threads, torch {machine.torch}; {ours}",
        f"\nPeaks: {peaks}" if peaks else "",
        "\nSmall shapes (--quick): results are checked, speed is not judged."
        if report.quick
        else "",
    )


def _table(rows: list[Found]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("case", no_wrap=True)
    table.add_column("dtype")
    table.add_column("against")
    for title in ("ours ms", "theirs ms", "times as fast", "required"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict")
    table.add_column("of peak", justify="right")
    for found in rows:
        _add(table, found)
    return table


def _add(table: Table, found: Found) -> None:
    """What is said once of a case stands in its first row."""
    name, dtype, share = found.case.name, found.setting.dtype, wording.share(found)
    for row in wording.rows(found):
        verdict = Text(row.verdict, style=STYLES.get(row.verdict, "dim"))
        numbers = (row.ours, row.theirs, row.reached, row.required)
        table.add_row(name, dtype, row.against, *numbers, verdict, share)
        name = dtype = share = ""


def _verdict(report: Report) -> Text:
    lines = [Text("")]
    for found in (*report.wrong, *report.missed):
        lines += [Text(fault, style=STYLES[found.verdict]) for fault in wording.faults(found)]
    for peer, why in report.left_out.items():
        lines.append(Text(f"Not compared: {peer}, because {why}", style="dim"))
    if not report.wrong:
        lines.append(Text("All results are as close to float64 as they must be.", style="green"))
    held = sum(found.verdict == HOLDS for found in report.found)
    judged = held + len(report.missed) + len(report.wrong)
    if judged:
        lines.append(Text(f"{held} of {judged} cases judged reach what they must.", style="bold"))
    return Text("\n").join(lines)
