"""The report as text: in colour on a terminal, plain where it is piped."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from torch import Tensor

from heedful.drawing import DIVERGING, SEQUENTIAL
from heedful.screen import console_for, plain_table, printed
from heedful.shapes import times
from heedful.tour.comparison import Comparison
from heedful.tour.inputs import Tokens
from heedful.tour.ladder import Rung
from heedful.tour.recordings import RecordedRun, RungResult, largest_absolute
from heedful.tour.report.matrices import LabelledMatrix, labelled_matrix, short_path, step_title
from heedful.tour.report.report import TourReport
from heedful.tour.speed import SpeedComparison

# Of larger matrices only a corner is shown, so that 80 columns suffice.
MAX_ROWS: int = 10
MAX_COLUMNS: int = 7
CORNER: int = 5
MAX_WIDTH: int = 70  # of heads side by side, in characters
MAX_LABEL: int = 10
INDENT: int = 4
GAP: int = 4


def as_text(report: TourReport, stream: TextIO, page: Path | None) -> str:
    """Return the whole report as text.

    Args:
        report: The report.
        stream: Where the text will be printed. There are no colours unless it is a terminal.
        page: The file to which the page was written, or None.
    """
    console = console_for(stream)
    console.print(_greeting(report.tokens))
    for number, (rung, result) in enumerate(report.results, 1):
        console.print(_heading(f"{number}. {rung.title}", rung.name))
        console.print(_rung(rung, result, report.tokens))
    console.print(_heading("This machine", ""))
    console.print(_speed(report.speed))
    console.print(_verdict(report))
    if page is not None:
        console.print(
            Text.assemble("Every step as a picture: ", (str(page), "bold")), soft_wrap=True
        )
    return printed(console)


def _greeting(tokens: Tokens) -> RenderableType:
    T, d = tokens.matrix.shape
    features = tuple(map(str, range(d)))
    return Group(
        Text.assemble(
            ("heedful tour", "bold"), f" of {tokens.origin}: {T} tokens with {d} features each"
        ),
        _indented(_matrices(LabelledMatrix(tokens.matrix, tokens.labels, features))),
    )


def _heading(title: str, name: str) -> RenderableType:
    aside = f"  --rung {name}" if name else ""
    rule = "─" * (len(title) + len(aside))
    return Text.assemble("\n", (title, "bold"), (aside, "dim"), "\n", (rule, "dim"))


def _rung(rung: Rung, result: RungResult, tokens: Tokens) -> RenderableType:
    parts: list[RenderableType] = [Text(rung.explanation)]
    parts += [_run(run, tokens) for run in result.runs]
    parts += [Text("\nDo the routes agree?", style="bold")]
    parts += [_indented(_comparisons(result.comparisons))]
    parts += [Padding(Text(finding), (1, 0, 0, 2)) for finding in result.findings]
    return Group(*parts)


def _run(run: RecordedRun, tokens: Tokens) -> RenderableType:
    """Return the steps of a run, each with its description, line and numbers."""
    files = ", ".join(sorted({short_path(step.file) for step in run.steps if step.file}))
    parts: list[RenderableType] = [Text.assemble((f"\n{run.title}", "bold"), (f"  {files}", "dim"))]
    parts += [_weight(name, value, tokens) for name, value in run.weights.items()]
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
        numbers = Text("the same numbers", "dim") if unchanged else _matrices(matrix)
        parts.append(Padding(Group(head, _indented(numbers)), (1, 0, 0, 2)))
        previous = matrix.tensor
    return Group(*parts)


def _weight(name: str, value: Tensor, tokens: Tokens) -> RenderableType:
    """Return a parameter and its numbers, from which the steps can be recomputed."""
    kind = "learned" if tokens.first_attention else "learned; here a random draw"
    head = Text.assemble((name, "bold cyan"), f"  {times(value.shape)}  {kind}")
    rows, columns = (tuple(map(str, range(size))) for size in torch.atleast_2d(value).shape)
    labels = rows if value.dim() > 1 else ("",)
    matrix = LabelledMatrix(torch.atleast_2d(value), labels, columns)
    return Padding(Group(head, _indented(_matrices(matrix))), (1, 0, 0, 2))


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, INDENT))


# --- numbers -----------------------------------------------------------------------------------------


def _matrices(matrix: LabelledMatrix) -> Text:
    """Return the numbers with their labels, heads side by side. A large matrix becomes a corner and a summary."""
    heads = matrix.tensor.reshape(-1, *matrix.tensor.shape[-2:])
    rows, columns = heads.shape[-2:]
    complete = rows <= MAX_ROWS and columns <= MAX_COLUMNS
    if not complete:
        rows, columns = min(rows, CORNER), min(columns, CORNER)
    number_format = _NumberFormat.of(matrix.tensor)
    blocks = [_block(head[:rows, :columns], matrix, number_format) for head in heads]
    if len(blocks) > 1:
        blocks = [[Text(f"head {head}", "dim"), *lines] for head, lines in enumerate(blocks)]
    fits = sum(_block_width(block) for block in blocks) <= MAX_WIDTH
    lines = _side_by_side(blocks) if fits else [*itertools.chain(*blocks)]
    if not complete:
        lines.append(Text(f"… {_summary(matrix.tensor)}", style="dim"))
    return Text("\n").join(lines)


def _block(head: Tensor, matrix: LabelledMatrix, number_format: _NumberFormat) -> list[Text]:
    """Return the lines of one head: the labels of the columns, then one line per row, all equally wide."""
    rows, columns = head.shape
    column_labels = [_shorten(label) for label in matrix.columns[:columns]]
    row_labels = [_shorten(label) for label in matrix.rows[:rows]]
    texts = [[number_format.text(entry) for entry in row] for row in head.tolist()]
    margin = max(map(len, row_labels))
    width = max(len(text) for row in [column_labels, *texts] for text in row)
    lines = [
        Text.assemble(
            (label.rjust(margin), "dim"),
            *(
                (f" {text:>{width}}", number_format.style(entry))
                for text, entry in zip(row, entries, strict=True)
            ),
        )
        for label, row, entries in zip(row_labels, texts, head.tolist(), strict=True)
    ]
    if not any(column_labels):
        return lines
    header = " " * margin + "".join(f" {label:>{width}}" for label in column_labels)
    return [Text(header, "dim"), *lines]


def _side_by_side(blocks: list[list[Text]]) -> list[Text]:
    """Join blocks of equally many lines from left to right."""
    widths = [_block_width(block) for block in blocks]
    lines = []
    for parts in zip(*blocks, strict=True):
        for part, width in zip(parts, widths, strict=True):
            part.pad_right(width - part.cell_len)
        lines.append(Text().join(parts))
    return lines


def _block_width(block: list[Text]) -> int:
    """Return the width of a block in characters, including the gap on its right."""
    return max(line.cell_len for line in block) + GAP


@dataclass(frozen=True)
class _NumberFormat:
    """Formats the numbers of a tensor, and colours them as the page does."""

    largest: float
    signed: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _NumberFormat:
        finite = tensor[tensor.isfinite()].float()
        return cls(largest_absolute(finite), signed=bool((finite < 0).any()))

    def text(self, entry: float | bool) -> str:
        if isinstance(entry, bool) or entry == 0:
            return str(int(entry))
        if not math.isfinite(entry):
            return f"{entry}".replace("inf", "∞").replace("-", "−")
        return f"{entry:z.4f}" if 0.01 <= self.largest < 100 else f"{entry:.3g}"

    def style(self, entry: float) -> str:
        if not math.isfinite(entry):
            return "dim"
        share = entry / self.largest if self.largest else 0.0
        stops = DIVERGING if self.signed else SEQUENTIAL
        index = round(((share + 1) / 2 if self.signed else share) * (len(stops) - 1))
        ink = "white" if abs(share) > 0.6 else "black"
        return f"{ink} on {stops[index]}"


def _shorten(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"


def _summary(tensor: Tensor) -> str:
    """Describe a tensor of which only a corner is shown."""
    finite = tensor[tensor.isfinite()].float()
    infinite = tensor.numel() - finite.numel()
    extent = f"from {finite.min().item():.4g} to {finite.max().item():.4g}, mean {finite.mean().item():.4g}"
    return f"the corner of {times(tuple(tensor.shape))}: {extent}" + (
        f", {infinite} × −∞" if infinite else ""
    )


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
