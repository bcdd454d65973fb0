"""Matrices as text that fits the screen: numbers where there is room for them, and otherwise a map of shades."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from rich.text import Text
from torch import Tensor

from heedful.drawing import DIVERGING, SEQUENTIAL, ink_on, pooled, robust_maximum
from heedful.screen import Abilities
from heedful.shapes import times
from heedful.tour.recordings import largest_absolute
from heedful.tour.report.matrices import LabelledMatrix

MAX_NUMBERED_ROWS: int = 32
MAX_MAP_ROWS: int = 32
MAX_MAP_COLUMNS: int = 96
LABEL_LIMITS: tuple[int, ...] = (10, 6)  # for numbers of four and of two decimals
GAP: int = 4  # between heads

# Shades from faint to strong, of positive and of negative numbers; without colors, only these tell them apart.
UNICODE_SHADES: tuple[str, str] = (" ░▒▓█", " -~=≡")
ASCII_SHADES: tuple[str, str] = (" .:+#", " -~=%")
# Of 16 colors, terminals agree on so few that a shade is one of these: nothing, some, much.
SIXTEEN_POSITIVE: tuple[str, ...] = ("", "black on cyan", "bright_white on blue")
SIXTEEN_NEGATIVE: tuple[str, ...] = ("", "black on yellow", "bright_white on red")


def matrices(matrix: LabelledMatrix, abilities: Abilities) -> Text:
    """Return a matrix, or one for each head side by side if they fit, in lines of at most the width of the screen.

    Args:
        matrix: The matrix, or one for each head.
        abilities: What the screen can show.
    """
    heads = matrix.tensor.reshape(-1, *matrix.tensor.shape[-2:])
    for decimals, longest in zip((4, 2), LABEL_LIMITS, strict=True):
        numbers = _Numbers.of(matrix.tensor, decimals, abilities)
        blocks = [_numbered(head, matrix, numbers, longest) for head in heads]
        if heads.shape[1] <= MAX_NUMBERED_ROWS and _width(blocks[0]) <= abilities.width:
            return Text("\n").join(_arranged(blocks, abilities.width))
    shades = _Shades.of(heads, abilities)
    lines = _arranged([_shaded(head, matrix, shades, abilities) for head in heads], abilities.width)
    cells = _map_size(heads.shape[1], heads.shape[2], matrix, abilities)
    lines += [Text(note, style="dim") for note in _notes(matrix.tensor, cells, shades)]
    return Text("\n").join(lines)


def _arranged(blocks: list[list[Text]], width: int) -> list[Text]:
    """Return the lines of blocks, side by side if they fit, or else below each other."""
    if len(blocks) > 1:
        blocks = [[Text(f"head {i}", "dim"), *lines] for i, lines in enumerate(blocks)]
    if len(blocks) == 1:
        return blocks[0]
    widths = [_width(block) for block in blocks]
    if sum(widths) + GAP * (len(blocks) - 1) > width:
        return [*itertools.chain(*blocks)]
    lines = []
    for parts in zip(*blocks, strict=True):
        for part, columns in zip(parts, widths, strict=True):
            part.pad_right(columns - part.cell_len)
        lines.append(Text(" " * GAP).join(parts))
    return lines


def _width(block: Sequence[Text]) -> int:
    return max(line.cell_len for line in block)


# --- numbers -----------------------------------------------------------------------------------------


def _numbered(head: Tensor, matrix: LabelledMatrix, numbers: _Numbers, longest: int) -> list[Text]:
    """Return the labels of the columns, then one line for each row, all equally wide."""
    column_labels = [_shortened(label, longest, numbers.unicode) for label in matrix.columns]
    row_labels = [_shortened(label, LABEL_LIMITS[0], numbers.unicode) for label in matrix.rows]
    texts = [[numbers.text(entry) for entry in row] for row in head.tolist()]
    margin = max(map(len, row_labels))
    width = max(len(text) for row in [column_labels, *texts] for text in row)
    lines = [
        Text.assemble(
            (label.rjust(margin), "dim"),
            *(
                (f" {text:>{width}}", numbers.style(entry))
                for text, entry in zip(row, entries, strict=True)
            ),
        )
        for label, row, entries in zip(row_labels, texts, head.tolist(), strict=True)
    ]
    if not any(column_labels):
        return lines
    header = " " * margin + "".join(f" {label:>{width}}" for label in column_labels)
    return [Text(header, "dim"), *lines]


@dataclass(frozen=True)
class _Numbers:
    """Formats the numbers of a tensor, and colors them as pages do."""

    largest: float
    signed: bool
    decimals: int
    colors: int
    unicode: bool

    @classmethod
    def of(cls, tensor: Tensor, decimals: int, abilities: Abilities) -> _Numbers:
        finite = tensor[tensor.isfinite()].float()
        signed = bool((finite < 0).any())
        largest = largest_absolute(finite)
        return cls(largest, signed, decimals, abilities.colors, abilities.unicode)

    def text(self, entry: float | bool) -> str:
        if isinstance(entry, bool) or entry == 0:
            return str(int(entry))
        if not math.isfinite(entry):
            return f"{entry}".replace("inf", "∞").replace("-", "−") if self.unicode else f"{entry}"
        if 0.01 <= self.largest < 100:
            return f"{entry:z.{self.decimals}f}"
        return f"{entry:.{self.decimals - 1}g}"

    def style(self, entry: float) -> str:
        if not math.isfinite(entry):
            return "dim"
        return _style(entry / self.largest if self.largest else 0.0, self.signed, self.colors)


def _style(share: float, signed: bool, colors: int) -> str:
    """Return the colors of a number that is a share of the largest, from −1 to 1."""
    if not colors:
        return ""
    if colors == 16:
        names = SIXTEEN_NEGATIVE if share < 0 else SIXTEEN_POSITIVE
        return names[(abs(share) > 0.2) + (abs(share) > 0.6)]
    stops = DIVERGING if signed else SEQUENTIAL
    ground = stops[round(((share + 1) / 2 if signed else share) * (len(stops) - 1))]
    return f"{ink_on(ground)} on {ground}"


def _shortened(label: str, longest: int, unicode: bool) -> str:
    mark = "…" if unicode else "~"
    return label if len(label) <= longest else f"{label[: longest - 1]}{mark}"


# --- shades ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shades:
    """The shades of a map: a color for each cell if there are many, or else a character of five."""

    largest: float
    signed: bool
    colors: int
    characters: tuple[str, str]

    @classmethod
    def of(cls, heads: Tensor, abilities: Abilities) -> _Shades:
        entries = heads.double().numpy()
        finite = entries[numpy.isfinite(entries)]
        characters = UNICODE_SHADES if abilities.unicode else ASCII_SHADES
        largest = robust_maximum(numpy.abs(finite))
        return cls(largest, bool((finite < 0).any()), abilities.colors, characters)

    def cell(self, mean: float, width: int) -> tuple[str, str]:
        """Return a cell's text and style."""
        if not math.isfinite(mean):
            return ("?" if math.isnan(mean) else " ") * width, "dim"
        share = min(max(mean / self.largest, -1.0), 1.0)
        if self.colors > 16:  # rich removes blanks from the end of a line, whatever their ground is
            ground = _style(share, self.signed, self.colors).rpartition(" ")[2]
            return self.characters[0][-1] * width, f"{ground} on {ground}"
        character = self.characters[share < 0][math.ceil(abs(share) * 4 - 1e-9)]
        foreground = {
            "": "",
            "cyan": "cyan",
            "blue": "bold blue",
            "yellow": "yellow",
            "red": "bold red",
        }
        ground = _style(share, self.signed, self.colors).rpartition(" ")[2]
        return character * width, foreground[ground]

    @property
    def key(self) -> str:
        """What the characters mean; nothing if colors tell it."""
        if self.colors > 16:
            return ""
        positive, negative = self.characters
        text = (
            f"{positive[1:]}  up to a quarter, half, three quarters and all of {self.largest:.3g}"
        )
        return f"{text}; {negative[1:]}  the same below 0" if self.signed else text


def _map_size(
    rows: int, columns: int, matrix: LabelledMatrix, abilities: Abilities
) -> tuple[int, int]:
    """Return how many rows and columns of cells a map has."""
    room = abilities.width - _margin(matrix, rows, abilities) - 1
    return min(rows, MAX_MAP_ROWS), max(1, min(columns, room, MAX_MAP_COLUMNS))


def _margin(matrix: LabelledMatrix, rows: int, abilities: Abilities) -> int:
    """Return the width of the labels of rows; none where a cell covers several rows."""
    if rows > MAX_MAP_ROWS or abilities.width < 2 * LABEL_LIMITS[0]:
        return 0
    return max(min(len(label), LABEL_LIMITS[0]) for label in matrix.rows)


def _shaded(
    head: Tensor, matrix: LabelledMatrix, shades: _Shades, abilities: Abilities
) -> list[Text]:
    """Return one line for each row of cells. They are two characters wide, and so square, if there is room."""
    rows, columns = head.shape
    height, width = _map_size(rows, columns, matrix, abilities)
    margin = _margin(matrix, rows, abilities)
    wide = 2 if margin + 1 + 2 * width <= abilities.width else 1
    cells = pooled(head.double().numpy(), (height, width)).tolist()
    labels = [_shortened(it, LABEL_LIMITS[0], abilities.unicode) for it in matrix.rows]
    return [
        Text.assemble(
            (f"{labels[i].rjust(margin)} " if margin else "", "dim"),
            *(shades.cell(mean, wide) for mean in row),
        )
        for i, row in enumerate(cells)
    ]


def _notes(tensor: Tensor, cells: tuple[int, int], shades: _Shades) -> list[str]:
    finite = tensor[tensor.isfinite()].float()
    infinite = tensor.numel() - finite.numel()
    extent = f"from {finite.min().item():.4g} to {finite.max().item():.4g}, mean {finite.mean().item():.4g}"
    size = times(tuple(tensor.shape[-2:]))
    shown = "" if cells == tuple(tensor.shape[-2:]) else f", as {times(cells)} cells, each a mean"
    hidden = f", {infinite} × −∞" if infinite else ""
    return [f"{size} entries{shown}: {extent}{hidden}", *([shades.key] if shades.key else [])]
