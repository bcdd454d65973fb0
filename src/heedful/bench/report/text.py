"""The report as text: in color on a terminal, plain where it is piped."""

from __future__ import annotations

import itertools
from typing import TextIO

from rich.table import Table
from rich.text import Text

from heedful.bench.peaks import DESCRIPTIONS
from heedful.bench.report.report import BenchReport
from heedful.bench.report.rows import faults, measured_title, rate, share_of_peak, table_rows
from heedful.bench.results import HOLDS, MISSED, WRONG, CaseResult
from heedful.screen import console_for, plain_table, printed

WIDTH: int = 120
STYLES: dict[str, str] = {HOLDS: "green", MISSED: "bold yellow", WRONG: "bold red"}


def as_text(report: BenchReport, stream: TextIO) -> str:
    """Return the whole report as text.

    Args:
        report: The report.
        stream: Where the text will be printed. There are no colors unless it is a terminal.
    """
    console = console_for(stream, WIDTH)
    console.print(_machine(report))
    for group, results in itertools.groupby(report.results, key=lambda result: result.case.group):
        console.print(Text.assemble("\n", (group, "bold")))
        console.print(_table(list(results), judged=report.judged))
    console.print(_verdict(report))
    return printed(console)


def _machine(report: BenchReport) -> Text:
    machine = report.machine
    kernel = (
        f"our kernel on {machine.isa}" if machine.isa else f"without our kernel: {machine.missing}"
    )
    peaks = ", ".join(
        f"{DESCRIPTIONS[name]} {rate(name, peak)}" for name, peak in report.peaks.items()
    )
    quick = "\nSmall workloads (--quick): results are checked, but speed means little."
    return Text.assemble(
        ("heedful bench", "bold"),
        f" on {machine.processor}, {machine.cores} cores, {machine.threads} threads, "
        f"torch {machine.torch}; {kernel}",
        f"\nPeaks: {peaks}" if peaks else "",
        quick if report.quick else "",
    )


def _table(results: list[CaseResult], *, judged: bool) -> Table:
    verdicts = judged or not all(result.right for result in results)
    table = plain_table()
    table.add_column("case", no_wrap=True)
    table.add_column("dtype")
    table.add_column("against")
    for title in (
        "ours ms",
        "theirs ms",
        measured_title(results),
        *(("required",) if judged else ()),
    ):
        table.add_column(title, justify="right", no_wrap=True)
    if verdicts:
        table.add_column("verdict")
    table.add_column("of peak", justify="right")
    for result in results:
        # What all rows of a case have in common stands in its first row.
        name, dtype, share = result.case.name, result.workload.dtype, share_of_peak(result)
        for row in table_rows(result):
            cells = [name, dtype, row.against, row.ours, row.theirs, row.measured]
            cells += [row.required] if judged else []
            verdict = [Text(row.verdict, style=STYLES.get(row.verdict, "dim"))] if verdicts else []
            table.add_row(*cells, *verdict, share)
            name = dtype = share = ""
    return table


def _verdict(report: BenchReport) -> Text:
    lines = [Text("")]
    for result in (*report.wrong, *report.missed):
        lines += [Text(fault, style=STYLES[result.verdict]) for fault in faults(result)]
    for peer, reason in report.not_installed.items():
        lines.append(Text(f"Not compared: {peer}, because {reason}", style="dim"))
    if report.right:
        lines.append(Text("All results are accurate, compared with float64.", style="green"))
    reached = len(report.holding)
    judged = reached + len(report.missed) + len(report.wrong)
    if report.judged and judged:
        lines.append(Text(f"{reached} of {judged} judged cases reach their targets.", style="bold"))
    return Text("\n").join(lines)
