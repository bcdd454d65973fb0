"""The tour as text: in colour on a terminal, plain where it is piped."""

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
from rich.table import Table
from rich.text import Text
from torch import Tensor

from heedful.drawing import DIVERGING, SEQUENTIAL
from heedful.screen import console_for, printed
from heedful.shapes import times
from heedful.tour.arranging import Arranged, arrange, short_path, step_title
from heedful.tour.comparison import Comparison
from heedful.tour.inputs import Tokens
from heedful.tour.ladder import Rung
from heedful.tour.report import Report
from heedful.tour.timing import Timing
from heedful.tour.walks import Climb, Walk, largest

MOST_ROWS, MOST_COLUMNS = 10, 7  # of more, a corner is shown: 80 columns hold it
MOST_BESIDE = 70  # characters of heads side by side
CORNER = 5
LONGEST_LABEL = 10
INDENT, GAP = 4, 4


def as_text(report: Report, stream: TextIO, page: Path | None) -> str:
    """The whole report, in the colours that the stream can show: none unless it is a terminal."""
    console = console_for(stream)
    console.print(_greeting(report.tokens))
    for number, (rung, climb) in enumerate(report.climbs, 1):
        console.print(_heading(f"{number}. {rung.title}", rung.name))
        console.print(_rung(rung, climb, report.tokens))
    console.print(_heading("This machine", ""))
    console.print(_timing(report.timing))
    console.print(_verdict(report))
    if page is not None:
        console.print(
            Text.assemble("Every step as a picture: ", (str(page), "bold")), soft_wrap=True
        )
    return printed(console)


def _greeting(tokens: Tokens) -> RenderableType:
    T, d = tokens.matrix.shape
    labels = tuple(map(str, range(d)))
    return Group(
        Text.assemble(
            ("heedful tour", "bold"), f" of {tokens.origin}: {T} tokens, {d} features each"
        ),
        _inset(_matrices(Arranged(tokens.matrix, tokens.labels, labels))),
    )


def _heading(title: str, name: str) -> RenderableType:
    aside = f"  --rung {name}" if name else ""
    rule = "─" * (len(title) + len(aside))
    return Text.assemble("\n", (title, "bold"), (aside, "dim"), "\n", (rule, "dim"))


def _rung(rung: Rung, climb: Climb, tokens: Tokens) -> RenderableType:
    parts: list[RenderableType] = [Text(rung.meaning)]
    parts += [_walk(walk, tokens) for walk in climb.walks]
    parts += [Text("\nDo the routes agree?", style="bold"), _inset(_comparisons(climb.comparisons))]
    parts += [Padding(Text(finding), (1, 0, 0, 2)) for finding in climb.findings]
    return Group(*parts)


def _walk(walk: Walk, tokens: Tokens) -> RenderableType:
    files = ", ".join(sorted({short_path(step.file) for step in walk.steps if step.file}))
    parts: list[RenderableType] = [
        Text.assemble((f"\n{walk.title}", "bold"), (f"  {files}", "dim"))
    ]
    before: Tensor | None = None
    for step in walk.steps:
        meaning = walk.meanings[step.name]
        head = Text.assemble(
            (step_title(step), "bold cyan"),
            f"  {times(step.shape)}  {meaning.text}  ",
            (f"line {step.line}", "dim"),
        )
        arranged = arrange(step, meaning, tokens.labels)
        same = before is not None and torch.equal(before, arranged.tensor)
        values = Text("the same numbers", "dim") if same else _matrices(arranged)
        parts.append(Padding(Group(head, _inset(values)), (1, 0, 0, 2)))
        before = arranged.tensor
    return Group(*parts)


def _inset(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, INDENT))


# --- numbers -----------------------------------------------------------------------------------------


def _matrices(arranged: Arranged) -> Text:
    """The numbers with their labels, heads side by side; of large matrices, a corner and a summary."""
    heads = arranged.tensor.reshape(-1, *arranged.tensor.shape[-2:])
    rows, columns = heads.shape[-2:]
    whole = rows <= MOST_ROWS and columns <= MOST_COLUMNS
    if not whole:
        rows, columns = min(rows, CORNER), min(columns, CORNER)
    scale = _Scale.of(arranged.tensor)
    drawn = [_matrix(head[:rows, :columns], arranged, scale) for head in heads]
    if len(drawn) > 1:
        drawn = [[Text(f"head {head}", "dim"), *lines] for head, lines in enumerate(drawn)]
    lines = _beside(drawn) if _width(drawn) <= MOST_BESIDE else [*itertools.chain(*drawn)]
    if not whole:
        lines.append(Text(f"… {_summary(arranged.tensor)}", style="dim"))
    return Text("\n").join(lines)


def _matrix(matrix: Tensor, arranged: Arranged, scale: _Scale) -> list[Text]:
    """One line a row, each as wide as the others."""
    rows, columns = matrix.shape
    head = [_short(label) for label in arranged.columns[:columns]]
    names = [_short(label) for label in arranged.rows[:rows]]
    texts = [[scale.text(entry) for entry in row] for row in matrix.tolist()]
    margin = max(map(len, names))
    width = max(len(text) for row in [head, *texts] for text in row)
    lines = [
        Text.assemble(
            (name.rjust(margin), "dim"),
            *(
                (f" {text:>{width}}", scale.style(entry))
                for text, entry in zip(row, entries, strict=True)
            ),
        )
        for name, row, entries in zip(names, texts, matrix.tolist(), strict=True)
    ]
    if not any(head):
        return lines
    return [Text(" " * margin + "".join(f" {label:>{width}}" for label in head), "dim"), *lines]


def _beside(blocks: list[list[Text]]) -> list[Text]:
    """Blocks of lines, equally high, next to each other."""
    widths = [max(line.cell_len for line in block) for block in blocks]
    lines = []
    for parts in zip(*blocks, strict=True):
        for part, width in zip(parts, widths, strict=True):
            part.pad_right(width - part.cell_len + GAP)
        lines.append(Text().join(parts))
    return lines


def _width(blocks: list[list[Text]]) -> int:
    return sum(max(line.cell_len for line in block) + GAP for block in blocks)


@dataclass(frozen=True)
class _Scale:
    """From a number to its text and its colour, the one that the page gives it, too."""

    largest: float
    signed: bool

    @classmethod
    def of(cls, tensor: Tensor) -> _Scale:
        finite = tensor[tensor.isfinite()].float()
        return cls(largest(finite), signed=bool((finite < 0).any()))

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
        at = round(((share + 1) / 2 if self.signed else share) * (len(stops) - 1))
        ink = "white" if abs(share) > 0.6 else "black"
        return f"{ink} on {stops[at]}"


def _short(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"


def _summary(tensor: Tensor) -> str:
    finite = tensor[tensor.isfinite()].float()
    infinite = tensor.numel() - finite.numel()
    span = f"from {finite.min().item():.4g} to {finite.max().item():.4g}, mean {finite.mean().item():.4g}"
    return f"the corner of {times(tuple(tensor.shape))}: {span}" + (
        f", {infinite} × −∞" if infinite else ""
    )


# --- verdicts ----------------------------------------------------------------------------------------


def _comparisons(comparisons: Sequence[Comparison]) -> Text:
    """The routes under what they are compared with, each with its largest difference."""
    lines = []
    for (quantity, against), found in itertools.groupby(
        comparisons, key=lambda found: (found.quantity, found.against)
    ):
        lines.append(Text(f"{quantity}: {against}"))
        lines += [
            Text.assemble(
                f"  {route.difference:.1e}  ",
                ("agrees", "green") if route.agrees else ("DIFFERS", "bold red"),
                f"  {route.route}",
            )
            for route in found
        ]
    return Text("\n").join(lines)


def _timing(timing: Timing) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("route")
    for title in ("median", "speed", "runs"):
        table.add_column(title, justify="right")
    for route, seconds in timing.medians.items():
        table.add_row(
            Text(route),
            f"{seconds * 1000:.1f} ms",
            f"{timing.speedups[route]:.1f} ×",
            str(timing.runs[route]),
        )
    return Group(
        Text(f"{timing.setting}; {timing.dtype}, {timing.threads} threads"),
        _inset(table),
        Text(f"heedful.attention() took the kernel {timing.kernel!r}."),
    )


def _verdict(report: Report) -> RenderableType:
    wrong = report.disagreements
    if not wrong:
        return Text(
            f"\nAll {len(report.comparisons)} comparisons agree to rounding.", style="bold green"
        )
    lines = [
        f"\n{len(wrong)} of {len(report.comparisons)} comparisons differ by more than rounding:"
    ]
    lines += [
        f"  {place}: {found.quantity} by {found.route!r} is {found.difference:.1e} from {found.against!r}, "
        f"more than {found.tolerance:.1e}"
        for place, found in wrong
    ]
    return Text("\n".join(lines), style="bold red")
