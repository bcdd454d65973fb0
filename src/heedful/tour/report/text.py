"""The report as text: in color on a terminal, plain where it is piped."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO, TypeAlias

import torch
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from heedful.screen import WIDTH, Abilities, console_for, plain_table, printed
from heedful.shapes import times
from heedful.tour.comparison import Comparison
from heedful.tour.inputs import Tokens
from heedful.tour.ladder import Rung
from heedful.tour.recordings import RecordedRun, RungResult
from heedful.tour.report.maps import matrices
from heedful.tour.report.matrices import LabelledMatrix, labelled_matrix, short_path, step_title
from heedful.tour.report.report import TourReport
from heedful.tour.speed import SpeedComparison

Draw: TypeAlias = Callable[[LabelledMatrix], Text]
INDENT: int = 4
MAX_WIDTH: int = 200  # of matrices; prose is narrower


def as_text(report: TourReport, stream: TextIO, page: Path | None) -> str:
    """Return the whole report as text.

    Args:
        report: The report.
        stream: Where the text will be printed. There are no colors unless it is a terminal.
        page: The file to which the page was written, or None.
    """
    console = console_for(stream, MAX_WIDTH if stream.isatty() else WIDTH)
    room = console.width - INDENT - 2
    draw = partial(matrices, abilities=replace(Abilities.of(console, stream), width=room))
    console.print(_greeting(report.tokens, draw))
    for number, (rung, result) in enumerate(report.results, 1):
        console.print(_heading(f"{number}. {rung.title}", rung.name))
        console.print(_rung(rung, result, report.tokens, draw))
    console.print(_heading("This machine", ""))
    console.print(_speed(report.speed))
    console.print(_verdict(report))
    if page is not None:
        console.print(
            Text.assemble("Every step as a picture: ", (str(page), "bold")), soft_wrap=True
        )
    return printed(console)


def _greeting(tokens: Tokens, draw: Draw) -> RenderableType:
    T, d = tokens.matrix.shape
    features = tuple(map(str, range(d)))
    return Group(
        Text.assemble(
            ("heedful tour", "bold"), f" of {tokens.origin}: {T} tokens with {d} features each"
        ),
        _indented(draw(LabelledMatrix(tokens.matrix, tokens.labels, features))),
    )


def _heading(title: str, name: str) -> RenderableType:
    aside = f"  --rung {name}" if name else ""
    rule = "─" * (len(title) + len(aside))
    return Text.assemble("\n", (title, "bold"), (aside, "dim"), "\n", (rule, "dim"))


def _rung(rung: Rung, result: RungResult, tokens: Tokens, draw: Draw) -> RenderableType:
    parts: list[RenderableType] = [Constrain(Text(rung.explanation), WIDTH)]
    parts += [_run(run, tokens, draw) for run in result.runs]
    parts += [Text("\nDo the routes agree?", style="bold")]
    parts += [_indented(_comparisons(result.comparisons))]
    parts += [Padding(Constrain(Text(finding), WIDTH), (1, 0, 0, 2)) for finding in result.findings]
    return Group(*parts)


def _run(run: RecordedRun, tokens: Tokens, draw: Draw) -> RenderableType:
    """Return the steps of a run, each with its description, line and numbers."""
    files = ", ".join(sorted({short_path(step.file) for step in run.steps if step.file}))
    parts: list[RenderableType] = [Text.assemble((f"\n{run.title}", "bold"), (f"  {files}", "dim"))]
    parts += [_weight(name, value, tokens, draw) for name, value in run.weights.items()]
    previous: Tensor | None = None
    for step in run.steps:
        description = run.descriptions[step.name]
        head = Text.assemble(
            (step_title(step), "bold cyan"),
            f"  {times(step.shape)}  {description.text}  ",
            (f"line {step.line}", "dim"),
        )
        matrix = labelled_matrix(step, description, tokens.labels)
        unchanged = previous is not None and torch.equal(previous, matrix.tensor)
        numbers = Text("the same numbers", "dim") if unchanged else draw(matrix)
        parts.append(Padding(Group(head, _indented(numbers)), (1, 0, 0, 2)))
        previous = matrix.tensor
    return Group(*parts)


def _weight(name: str, value: Tensor, tokens: Tokens, draw: Draw) -> RenderableType:
    """Return a parameter and its numbers, from which the steps can be recomputed."""
    kind = "learned" if tokens.first_attention else "learned; here a random draw"
    head = Text.assemble((name, "bold cyan"), f"  {times(value.shape)}  {kind}")
    rows, columns = (tuple(map(str, range(size))) for size in torch.atleast_2d(value).shape)
    labels = rows if value.dim() > 1 else ("",)
    matrix = LabelledMatrix(torch.atleast_2d(value), labels, columns)
    return Padding(Group(head, _indented(draw(matrix))), (1, 0, 0, 2))


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, INDENT))


# --- verdicts ----------------------------------------------------------------------------------------


def _comparisons(comparisons: Sequence[Comparison]) -> Text:
    """List the routes below the one that they are compared with, each with its largest difference."""
    lines = []
    for (quantity, against), routes in itertools.groupby(
        comparisons, key=lambda comparison: (comparison.quantity, comparison.against)
    ):
        lines.append(Text(f"{quantity}: {against}"))
        lines += [
            Text.assemble(
                f"  {comparison.difference:.1e}  ",
                ("agrees", "green") if comparison.agrees else ("DIFFERS", "bold red"),
                f"  {comparison.route}",
            )
            for comparison in routes
        ]
    return Text("\n").join(lines)


def _speed(speed: SpeedComparison) -> RenderableType:
    table = plain_table()
    table.add_column("route")
    for title in ("median", "speed", "runs"):
        table.add_column(title, justify="right")
    for route, seconds in speed.medians.items():
        table.add_row(
            Text(route),
            f"{seconds * 1000:.1f} ms",
            f"{speed.speedups[route]:.1f} ×",
            str(speed.runs[route]),
        )
    return Group(
        Text(f"{speed.workload}; {speed.dtype}, {speed.threads} threads"),
        _indented(table),
        Text(f"heedful.attention() used the kernel {speed.kernel!r}."),
    )


def _verdict(report: TourReport) -> RenderableType:
    disagreements, total = report.disagreements, len(report.comparisons)
    if not disagreements:
        return Text(f"\nAll {total} comparisons agree to rounding.", style="bold green")
    lines = [f"\n{len(disagreements)} of {total} comparisons differ by more than rounding:"]
    lines += [
        f"  {place}: {comparison.quantity} by {comparison.route!r} and by {comparison.against!r} differ by "
        f"{comparison.difference:.1e}, more than {comparison.tolerance:.1e}"
        for place, comparison in disagreements
    ]
    return Text("\n".join(lines), style="bold red")
