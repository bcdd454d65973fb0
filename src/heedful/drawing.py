"""Draw a tensor as a heat map in self-contained HTML, without scripts or files.

    page = f"<style>{STYLE}</style>" + heat_map(weights, row_labels=words, column_labels=words)

A small matrix becomes a table with numbers in its cells, a larger one a picture. Leading dimensions become a row of
small panels that share one color scale.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from uuid import uuid4

import numpy
import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.shapes import times

TABLE_LIMIT: int = 16  # rows or columns of a table, whose cells have room for numbers
PICTURE_LIMIT: int = 64  # rows or columns of a picture, whose cells can still be distinguished
PANEL_LIMIT: int = 8
PICK_LIMIT: int = 32  # panels to pick from
USUAL: float = 0.99  # of the entries of a picture that are not 0 lie within its scale, at least
LEVELS: int = 48  # colors of a picture, each of which is one path

SEQUENTIAL: tuple[str, ...] = (
    "#f7fbff",
    "#deebf7",
    "#c6dbef",
    "#9ecae1",
    "#6baed6",
    "#4292c6",
    "#2171b5",
    "#08306b",
)
DIVERGING: tuple[str, ...] = (
    "#6e2a04",
    "#b5480b",
    "#ee8339",
    "#fdd5b1",
    "#f4f8fc",
    "#c6dbef",
    "#6baed6",
    "#2171b5",
    "#08306b",
)
"""Orange for negative values, blue for positive ones, as in pages. Both scales can be read by the color-blind."""

STYLE: str = """
.heat-map { margin: 0.5em 0 1em; color: inherit; font: 12px/1.3 system-ui, sans-serif; }
.heat-map figcaption { margin-top: 0.4em; opacity: 0.85; }
.heat-map .panels { display: flex; flex-wrap: wrap; gap: 1em; align-items: flex-start; overflow-x: auto; }
.heat-map .panel > p { margin: 0 0 0.2em; opacity: 0.85; }
.heat-map table { font: inherit; border-collapse: separate; border-spacing: 1px;
  width: auto; margin: 0; background: none; }
figure.heat-map tbody tr { background: none; }
.heat-map td, .heat-map .scale { print-color-adjust: exact; }
.heat-map details { margin: 0.1em 0; }
.heat-map summary { cursor: pointer; width: max-content; }
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
"""The CSS of heat maps. Include it once per page."""


def heat_map(
    tensor: Tensor,
    *,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    caption: str | None = None,
    pick: str | None = None,
    numbers: bool = True,
) -> str:
    """Draw a tensor as HTML that needs only `STYLE`.

    Colors range from white to blue if all values are nonnegative, and from orange over white to blue otherwise. NaN and
    infinities are hatched. A large matrix is drawn with fewer cells, each of which shows the mean of the finite entries
    it covers. The caption mentions this, and how many panels are left out.

    Args:
        tensor: (…, rows, columns) of any dtype. A vector is drawn as one row. Leading dimensions become panels that
            share one scale. Complex numbers are drawn by magnitude.
        row_labels: one label per row, such as the words that attend.
        column_labels: one label per column, such as the words that are attended to.
        caption: the text below the figure.
        numbers: whether small matrices are tables of numbers and there is a scale; False: pictures without one.
        pick: what a panel is, such as "head". If given, the reader opens one panel at a time.

    Returns:
        An HTML ``<figure>``.

    Raises:
        ArgumentError: the argument is not a tensor with readable entries, or the number of labels is wrong.

    Examples:
        >>> html = heat_map(torch.eye(2), caption="The identity.")
        >>> html.startswith('<figure class="heat-map">')
        True
    """
    entries = _as_numbers(tensor)
    rows, columns = entries.shape[-2:]
    _check_labels("row_labels", row_labels, rows)
    _check_labels("column_labels", column_labels, columns)
    if not entries.size:
        return _figure([], [caption, f"{times(tensor.shape)}: no entries"])

    leading = list(numpy.ndindex(entries.shape[:-2]))
    limit = PANEL_LIMIT if pick is None else PICK_LIMIT
    # A single large entry would leave the means of blocks without color.
    drawn = numpy.stack([pooled(entries[index]) for index in leading[:limit]])
    scale = _ColorScale.of(drawn, whole=not (tensor.is_floating_point() or tensor.is_complex()))
    labels = _Labels(row_labels, column_labels)
    panels = [
        _panel(entries[index], ", ".join(map(str, index)), labels, scale, pick, numbers)
        for index in leading[:limit]
    ]
    if pick is not None and len(panels) > 1:
        panels = [_picker(panels)]
    notes = [caption and html.escape(caption), _legend(entries, scale) if numbers else None]
    if tensor.is_complex():
        notes.append("The magnitude is drawn.")
    if max(rows, columns) > PICTURE_LIMIT:
        cells = min(rows, PICTURE_LIMIT), min(columns, PICTURE_LIMIT)
        notes.append(f"{rows} × {columns} entries by {times(cells)} cells, each a mean.")
    if len(leading) > limit:
        left_out = len(leading) - limit
        notes.append(f"{limit} of {len(leading)} panels shown, {left_out} left out.")
    return _figure(panels, notes)


def _as_numbers(tensor: Tensor) -> numpy.ndarray:
    """Return the entries of a tensor as float64, (…, rows, columns)."""
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
            remedy="Labels belong to the last two dimensions: rows are dimension -2, columns dimension -1.",
        )


@dataclass(frozen=True)
class _Labels:
    rows: Sequence[str] | None
    columns: Sequence[str] | None

    def row(self, index: int) -> str:
        return str(index) if self.rows is None else self.rows[index]

    def column(self, index: int) -> str:
        return str(index) if self.columns is None else self.columns[index]


@cache  # a picture has thousands of cells and only `LEVELS` colors
def _color(stops: tuple[str, ...], level: int) -> tuple[int, int, int]:
    """Return the red, green and blue of a level, interpolated between the stops."""
    position = level / (LEVELS - 1) * (len(stops) - 1)
    channels = numpy.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops])
    red, green, blue = (
        round(numpy.interp(position, range(len(stops)), channels[:, channel]))
        for channel in range(3)
    )
    return red, green, blue


@dataclass(frozen=True)
class _ColorScale:
    """Maps values to colors and to text."""

    low: float
    high: float
    stops: tuple[str, ...]
    whole: bool
    clipped: bool = False

    @classmethod
    def of(cls, numbers: numpy.ndarray, *, whole: bool) -> _ColorScale:
        """Return the scale for numbers, which are `whole` if their dtype is integer or Boolean."""
        finite = numbers[numpy.isfinite(numbers)]
        sizes = numpy.abs(finite)
        largest = float(sizes.max(initial=0.0)) or 1.0
        high = robust_maximum(sizes) if max(numbers.shape[-2:]) > TABLE_LIMIT else largest
        clipped = high < largest
        if (finite < 0).any():
            return cls(-high, high, DIVERGING, whole, clipped)
        return cls(0.0, high, SEQUENTIAL, whole, clipped)

    def level(self, value: float) -> int:
        """Return the level of a finite value, from 0 to `LEVELS` − 1."""
        share = (value - self.low) / (self.high - self.low)
        return round(min(max(share, 0.0), 1.0) * (LEVELS - 1))

    def color(self, level: int) -> tuple[int, int, int]:
        """Return the red, green and blue of a level."""
        return _color(self.stops, level)

    def text(self, value: float) -> str:
        """Return a value as text."""
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        return f"{value:{self._format}}".replace("-", "−")

    @property
    def _format(self) -> str:
        """The format for values of this size. `z` omits the sign of a value that rounds to zero."""
        if self.whole:
            return "z.0f"
        if not 1e-3 <= self.high < 1e4:
            return "z.1e"
        return "z.2f" if self.high >= 0.1 else "z.4f"


def robust_maximum(sizes: numpy.ndarray) -> float:
    """Return the largest size, or a smaller one if few entries are so large that the others would be white.

    The first queries of a causal attention have few keys, and so weights many times as large as all others.
    """
    largest = float(sizes.max(initial=0.0)) or 1.0
    usual = usual_maximum(sizes)
    return usual if largest > 2 * usual else largest


def usual_maximum(sizes: numpy.ndarray) -> float:
    """Return the size that all but a hundredth of those above 0 do not exceed; 1 if none is above 0."""
    present = sizes[sizes > 0]
    return float(numpy.quantile(present, USUAL, method="higher")) if present.size else 1.0


def _panel(
    matrix: numpy.ndarray,
    index: str,
    labels: _Labels,
    scale: _ColorScale,
    pick: str | None,
    numbers: bool,
) -> str:
    draw = _table if numbers and max(matrix.shape) <= TABLE_LIMIT else _picture
    drawn = draw(matrix, labels, scale)
    if pick is not None and index:
        return f"<summary>{html.escape(pick)} {index}</summary>{drawn}"
    heading = f"<p>[{index}]</p>" if index else ""
    return f'<div class="panel">{heading}{drawn}</div>'


def _picker(panels: Sequence[str]) -> str:
    """Return panels of which one is open. It needs no script, so that it works wherever HTML is shown."""
    group = f"panels-{uuid4().hex[:12]}"
    opened = (
        f'<details name="{group}"{" open" if i == 0 else ""}>{panel}</details>'
        for i, panel in enumerate(panels)
    )
    return f"<div>{''.join(opened)}</div>"


def _table(matrix: numpy.ndarray, labels: _Labels, scale: _ColorScale) -> str:
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


def _cell(value: float, position: str, scale: _ColorScale) -> str:
    if math.isfinite(value):
        color = scale.color(scale.level(value))
        look = f'style="background:{_hex(color)};color:{_text_color(color)}"'
        exact = f"{value:.6g}"
    else:
        look = f'class="{_css_class(value)}"'
        exact = scale.text(value)
    return f'<td {look} title="{html.escape(position)}: {exact}">{scale.text(value)}</td>'


def _css_class(value: float) -> str:
    """Return the CSS class of a value that is not finite."""
    if math.isnan(value):
        return "nan"
    return "plus-infinity" if value > 0 else "minus-infinity"


def _hex(color: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


def _text_color(background: tuple[int, int, int]) -> str:
    """Return black or white, whichever has the larger contrast ratio as defined by WCAG."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (channel / 255 for channel in background)
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#fff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#111"


def _picture(matrix: numpy.ndarray, labels: _Labels, scale: _ColorScale) -> str:
    """Return an SVG with one path per color, so that a cell takes a dozen bytes."""
    cells = pooled(matrix)
    rows, columns = cells.shape
    squares: dict[str, list[str]] = {}
    for (i, j), value in numpy.ndenumerate(cells):
        is_finite = math.isfinite(value)
        fill = _hex(scale.color(scale.level(value))) if is_finite else _css_class(value)
        squares.setdefault(fill, []).append(f"M{j} {i}h1v1h-1z")
    paths = "".join(_path(fill, "".join(commands)) for fill, commands in squares.items())

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
    """Return the labels along an axis, or none if a cell covers several entries."""
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


def ink_on(ground: str) -> str:
    """Return "#111111" or "#ffffff", whichever is easier to read on a color such as "#6baed6"."""
    red, green, blue = (int(ground[i : i + 2], 16) for i in (1, 3, 5))
    ink = _text_color((red, green, blue)).removeprefix("#")
    return f"#{ink}{ink}"


def pooled(
    matrix: numpy.ndarray, limits: tuple[int, int] = (PICTURE_LIMIT, PICTURE_LIMIT)
) -> numpy.ndarray:
    """Return the means of the finite entries of blocks, at most as many rows and columns as the limits say.

    A NaN or +∞ fills its whole block, because it is usually a bug. −∞ is usually a mask, so it only fills a block that
    contains nothing else.
    """
    if all(size <= limit for size, limit in zip(matrix.shape, limits, strict=True)):
        return matrix
    starts = [
        numpy.linspace(0, size, min(size, limit), endpoint=False).astype(int)
        for size, limit in zip(matrix.shape, limits, strict=True)
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


def _range(numbers: numpy.ndarray, scale: _ColorScale) -> str:
    finite = numbers[numpy.isfinite(numbers)]
    if not finite.size:
        return "none finite"
    return f"from {scale.text(finite.min())} to {scale.text(finite.max())}"


def _legend(numbers: numpy.ndarray, scale: _ColorScale) -> str:
    bar = f"linear-gradient(90deg, {', '.join(scale.stops)})"
    counts = {
        "−∞": int(numpy.isneginf(numbers).sum()),
        "∞": int(numpy.isposinf(numbers).sum()),
        "NaN": int(numpy.isnan(numbers).sum()),
    }
    hatched = ", ".join(f"{count} × {name}" for name, count in counts.items() if count)
    return (
        f"{'≤ ' if scale.clipped and scale.low else ''}{scale.text(scale.low)}"
        f'<span class="scale" style="background:{bar}"></span>'
        f"{'≥ ' if scale.clipped else ''}{scale.text(scale.high)}; values {_range(numbers, scale)}"
        + (f"; hatched: {hatched}" if hatched else "")
    )


def _figure(panels: list[str], notes: Sequence[str | None]) -> str:
    lines = "<br>".join(note for note in notes if note)
    drawn = f'<div class="panels">{"".join(panels)}</div>' if panels else ""
    return f'<figure class="heat-map">{drawn}<figcaption>{lines}</figcaption></figure>'
