"""Draws a tensor as a heat map: one self-contained piece of HTML, without scripts or files.

    page = f"<style>{STYLE}</style>" + heat_map(weights, row_labels=words, column_labels=words)

A small matrix becomes a table with its numbers in the cells, a larger one a picture; leading
dimensions become a row of small panels that share one scale.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy
import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.shapes import times

TABLE_LIMIT = 16  # rows or columns: what still has room for numbers
PICTURE_LIMIT = 64  # rows or columns: what still can be told apart
PANEL_LIMIT = 8
LEVELS = 48  # colours in a picture: one path each

SEQUENTIAL = (
    "#f7fbff",
    "#deebf7",
    "#c6dbef",
    "#9ecae1",
    "#6baed6",
    "#4292c6",
    "#2171b5",
    "#08306b",
)
DIVERGING = (
    "#2166ac",
    "#4393c3",
    "#92c5de",
    "#d1e5f0",
    "#f7f7f7",
    "#fddbc7",
    "#f4a582",
    "#d6604d",
    "#b2182b",
)
"""Blue for negative, red for positive; both orders stay apart for the colour-blind."""

STYLE = """
.heat-map { margin: 0.5em 0 1em; color: inherit; font: 12px/1.3 system-ui, sans-serif; }
.heat-map figcaption { margin-top: 0.4em; opacity: 0.85; }
.heat-map .panels { display: flex; flex-wrap: wrap; gap: 1em; align-items: flex-start; overflow-x: auto; }
.heat-map .panel > p { margin: 0 0 0.2em; opacity: 0.85; }
.heat-map table { font: inherit; border-collapse: separate; border-spacing: 1px;
  width: auto; margin: 0; background: none; }
.heat-map td { padding: 0.25em 0.4em; min-width: 2.4em; text-align: right; border: 0;
  font-variant-numeric: tabular-nums; }
.heat-map th { padding: 0.1em 0.4em; font-weight: 500; text-align: right; border: 0; background: none; }
.heat-map thead th { text-align: center; }
.heat-map td.minus-infinity, .heat-map td.plus-infinity, .heat-map td.nan { color: #111;
  background: repeating-linear-gradient(45deg, #c4c4c4 0 2px, #dcdcdc 2px 6px); }
.heat-map td.nan { background: repeating-linear-gradient(-45deg, #ecd08a 0 2px, #f6e3ae 2px 6px); }
.heat-map svg { display: block; max-width: 100%; }
.heat-map svg text { fill: currentColor; }
.heat-map .scale { display: inline-block; width: 8em; height: 0.8em; margin: 0 0.4em;
  vertical-align: -0.1em; border: 1px solid rgba(128, 128, 128, 0.6); }
"""
"""CSS for heat maps, to be included once per page."""


def heat_map(
    tensor: Tensor,
    *,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    caption: str | None = None,
) -> str:
    """Draw a tensor as HTML that needs nothing but `STYLE`.

    Colours run from white to blue for values from 0 up, and from blue over white to red where some
    are negative. NaN and infinities are hatched. What is too large is drawn by fewer cells, each the
    mean of the finite entries it stands for, and the caption says so; so it does of panels left out.

    Args:
        tensor: `(…, rows, columns)` of any dtype; one dimension is one row. Leading dimensions
            become panels that share one scale. Of complex numbers the magnitude is drawn.
        row_labels: one for each row, such as the words that attend.
        column_labels: one for each column, such as the words attended to.
        caption: what the reader is told beneath.

    Raises:
        ArgumentError: no tensor, or one without entries to read; labels that are too many or too few.
    """
    numbers = _as_numbers(tensor)
    rows, columns = numbers.shape[-2:]
    _check_labels("row_labels", row_labels, rows)
    _check_labels("column_labels", column_labels, columns)
    if not numbers.size:
        return _figure([], [caption, f"{times(tensor.shape)}: no entries"])

    scale = _Scale.of(numbers, whole=not (tensor.is_floating_point() or tensor.is_complex()))
    labels = _Labels(row_labels, column_labels)
    leading = list(numpy.ndindex(numbers.shape[:-2]))
    panels = [
        _panel(numbers[index], ", ".join(map(str, index)), labels, scale)
        for index in leading[:PANEL_LIMIT]
    ]
    notes = [caption and html.escape(caption), _legend(numbers, scale)]
    if tensor.is_complex():
        notes.append("The magnitude is drawn.")
    if max(rows, columns) > PICTURE_LIMIT:
        cells = min(rows, PICTURE_LIMIT), min(columns, PICTURE_LIMIT)
        notes.append(f"{rows} × {columns} entries by {times(cells)} cells, each a mean.")
    if len(leading) > PANEL_LIMIT:
        left_out = len(leading) - PANEL_LIMIT
        notes.append(f"{PANEL_LIMIT} of {len(leading)} panels shown, {left_out} left out.")
    return _figure(panels, notes)


def _as_numbers(tensor: Tensor) -> numpy.ndarray:
    """A tensor's entries as float64, `(…, rows, columns)`."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta:
        received = (
            "a tensor without entries" if isinstance(tensor, Tensor) else type(tensor).__name__
        )
        raise ArgumentError(
            "tensor",
            expected="a dense torch.Tensor whose entries can be read",
            received=received,
            remedy="Use torch.as_tensor for arrays and lists, and .to_dense() for sparse tensors.",
        )
    readable = tensor.detach().abs() if tensor.is_complex() else tensor.detach()
    return numpy.atleast_2d(readable.to("cpu", torch.float64).numpy())


def _check_labels(name: str, labels: Sequence[str] | None, count: int) -> None:
    if labels is not None and len(labels) != count:
        raise ArgumentError(
            name,
            expected=f"{count} labels, one for each",
            received=f"{len(labels)}",
            remedy="Label the last two dimensions: the rows are dimension -2, the columns -1.",
        )


@dataclass(frozen=True)
class _Labels:
    rows: Sequence[str] | None
    columns: Sequence[str] | None

    def row(self, index: int) -> str:
        return str(index) if self.rows is None else self.rows[index]

    def column(self, index: int) -> str:
        return str(index) if self.columns is None else self.columns[index]


@cache  # a picture has thousands of cells and `LEVELS` colours
def _colour(stops: tuple[str, ...], level: int) -> tuple[int, int, int]:
    """Red, green and blue of a level, interpolated between the stops."""
    at = level / (LEVELS - 1) * (len(stops) - 1)
    channels = numpy.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops])
    red, green, blue = (
        round(numpy.interp(at, range(len(stops)), channels[:, channel])) for channel in range(3)
    )
    return red, green, blue


@dataclass(frozen=True)
class _Scale:
    """From a value to its colour and its text."""

    low: float
    high: float
    stops: tuple[str, ...]
    whole: bool

    @classmethod
    def of(cls, numbers: numpy.ndarray, *, whole: bool) -> _Scale:
        finite = numbers[numpy.isfinite(numbers)]
        high = float(numpy.abs(finite).max(initial=0.0)) or 1.0
        if (finite < 0).any():
            return cls(-high, high, DIVERGING, whole)
        return cls(0.0, high, SEQUENTIAL, whole)

    def level(self, value: float) -> int:
        """Which of the `LEVELS` steps from low to high a finite value is on."""
        return round((value - self.low) / (self.high - self.low) * (LEVELS - 1))

    def colour(self, level: int) -> tuple[int, int, int]:
        return _colour(self.stops, level)

    def text(self, value: float) -> str:
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        return f"{value:{self._format}}".replace("-", "−")

    @property
    def _format(self) -> str:
        """How to print values of this size; `z` prints what rounds to zero without a sign."""
        if self.whole:
            return "z.0f"
        if not 1e-3 <= self.high < 1e4:
            return "z.1e"
        return "z.2f" if self.high >= 0.1 else "z.4f"


def _panel(matrix: numpy.ndarray, index: str, labels: _Labels, scale: _Scale) -> str:
    heading = f"<p>[{index}]</p>" if index else ""
    draw = _table if max(matrix.shape) <= TABLE_LIMIT else _picture
    return f'<div class="panel">{heading}{draw(matrix, labels, scale)}</div>'


def _table(matrix: numpy.ndarray, labels: _Labels, scale: _Scale) -> str:
    rows, columns = matrix.shape
    head = ""
    if labels.columns is not None:
        corner = "" if labels.rows is None else "<td></td>"
        cells = (f'<th scope="col">{html.escape(labels.column(j))}</th>' for j in range(columns))
        head = f"<thead><tr>{corner}{''.join(cells)}</tr></thead>"
    body = []
    for i in range(rows):
        label = "" if labels.rows is None else f'<th scope="row">{html.escape(labels.row(i))}</th>'
        cells = (
            _cell(matrix[i, j], f"{labels.row(i)}, {labels.column(j)}", scale)
            for j in range(columns)
        )
        body.append(f"<tr>{label}{''.join(cells)}</tr>")
    return f"<table>{head}<tbody>{''.join(body)}</tbody></table>"


def _cell(value: float, position: str, scale: _Scale) -> str:
    if math.isfinite(value):
        colour = scale.colour(scale.level(value))
        look = f'style="background:{_hex(colour)};color:{_ink(colour)}"'
        exact = f"{value:.6g}"
    else:
        look = f'class="{_kind(value)}"'
        exact = scale.text(value)
    return f'<td {look} title="{html.escape(position)}: {exact}">{scale.text(value)}</td>'


def _kind(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return "plus-infinity" if value > 0 else "minus-infinity"


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _ink(colour: tuple[int, int, int]) -> str:
    """Black or white, whichever stands out more by WCAG's contrast ratio."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in colour)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#fff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#111"


def _picture(matrix: numpy.ndarray, labels: _Labels, scale: _Scale) -> str:
    """An SVG with one path per colour: a cell costs a dozen bytes."""
    cells = _pooled(matrix)
    rows, columns = cells.shape
    squares: dict[str, list[str]] = {}
    for (i, j), value in numpy.ndenumerate(cells):
        fill = _hex(scale.colour(scale.level(value))) if math.isfinite(value) else _kind(value)
        squares.setdefault(fill, []).append(f"M{j} {i}h1v1h-1z")
    paths = "".join(_path(fill, "".join(where)) for fill, where in squares.items())

    size = 12 if max(rows, columns) <= 40 else 8
    row_texts = _texts(labels.rows, rows, matrix.shape[0])
    column_texts = _texts(labels.columns, columns, matrix.shape[1])
    left, top = (6 * max(map(len, texts), default=0) + 6 for texts in (row_texts, column_texts))
    words = [
        f'<text x="{left - 4}" y="{top + (i + 0.8) * size:.1f}" text-anchor="end">{html.escape(text)}</text>'
        for i, text in enumerate(row_texts)
    ] + [
        f'<text transform="translate({left + (j + 0.8) * size:.1f} {top - 4}) rotate(-90)">'
        f"{html.escape(text)}</text>"
        for j, text in enumerate(column_texts)
    ]
    width, height = left + columns * size, top + rows * size
    title = f"{matrix.shape[0]} × {matrix.shape[1]} values, {_range(matrix, scale)}"
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-size="{size - 2}"><title>{title}</title>{"".join(words)}'
        f'<g transform="translate({left} {top}) scale({size})">{paths}</g></svg>'
    )


def _texts(labels: Sequence[str] | None, cells: int, entries: int) -> list[str]:
    """The labels along an axis of cells; none where a cell stands for several entries."""
    return [] if labels is None or cells < entries else list(labels)


def _path(fill: str, squares: str) -> str:
    if fill.startswith("#"):
        return f'<path fill="{fill}" shape-rendering="crispEdges" d="{squares}"/>'
    ground, stroke, line = {
        "nan": ("#f6e3ae", "#b8860b", "l1 1"),
        "minus-infinity": ("#d9d9d9", "#8c8c8c", "m0 1l1 -1"),
        "plus-infinity": ("#d9d9d9", "#333333", "m0 1l1 -1"),
    }[fill]
    hatching = squares.replace("h1v1h-1z", line)
    return (
        f'<path fill="{ground}" d="{squares}"/>'
        f'<path stroke="{stroke}" stroke-width="0.12" d="{hatching}"/>'
    )


def _pooled(matrix: numpy.ndarray) -> numpy.ndarray:
    """Means over blocks, of their finite entries. What is NaN or +∞ is a find and fills its block;
    −∞ masks, and only a block that is masked whole shows it.
    """
    if max(matrix.shape) <= PICTURE_LIMIT:
        return matrix
    starts = [
        numpy.linspace(0, size, min(size, PICTURE_LIMIT), endpoint=False).astype(int)
        for size in matrix.shape
    ]

    def sums(values: numpy.ndarray) -> numpy.ndarray:
        by_rows = numpy.add.reduceat(values.astype(float), starts[0], axis=0)
        return numpy.add.reduceat(by_rows, starts[1], axis=1)

    finite = numpy.isfinite(matrix)
    count = sums(finite)
    means = sums(numpy.where(finite, matrix, 0.0)) / numpy.maximum(count, 1)
    means[count == 0] = -math.inf
    means[sums(numpy.isposinf(matrix)) > 0] = math.inf
    means[sums(numpy.isnan(matrix)) > 0] = math.nan
    return means


def _range(numbers: numpy.ndarray, scale: _Scale) -> str:
    finite = numbers[numpy.isfinite(numbers)]
    if not finite.size:
        return "none finite"
    return f"from {scale.text(finite.min())} to {scale.text(finite.max())}"


def _legend(numbers: numpy.ndarray, scale: _Scale) -> str:
    bar = f"linear-gradient(90deg, {', '.join(scale.stops)})"
    counts = {
        "−∞": int(numpy.isneginf(numbers).sum()),
        "∞": int(numpy.isposinf(numbers).sum()),
        "NaN": int(numpy.isnan(numbers).sum()),
    }
    hatched = ", ".join(f"{count} × {what}" for what, count in counts.items() if count)
    return (
        f'{scale.text(scale.low)}<span class="scale" style="background:{bar}"></span>'
        f"{scale.text(scale.high)}; values {_range(numbers, scale)}"
        + (f"; hatched: {hatched}" if hatched else "")
    )


def _figure(panels: list[str], notes: Sequence[str | None]) -> str:
    lines = "<br>".join(note for note in notes if note)
    drawn = f'<div class="panels">{"".join(panels)}</div>' if panels else ""
    return f'<figure class="heat-map">{drawn}<figcaption>{lines}</figcaption></figure>'
