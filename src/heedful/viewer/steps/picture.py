"""A picture of the attentions of recorded runs, or of a model's heads, drawn by Matplotlib, for papers and slides."""

# The imports within functions come with an extra:
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.viewer.pictures import COLORS, check_matplotlib, drawable, saved
from heedful.viewer.steps.axes import HEAD, KEY, TOKEN
from heedful.viewer.steps.node import Node
from heedful.viewer.steps.nodes import nodes_of
from heedful.viewer.steps.recording import Recording

MAPS = ("scores", "masked", "weights")
LARGEST = 1 << 20  # entries of a value
MOST_ROWS = 8
NUMBERED = 8  # rows or columns of a map whose cells have room for numbers
INCHES = 3.2


def picture_of(recordings: Sequence[Recording], form: str) -> bytes:
    """Return a picture: one row for each head of each attention, with its scores, masked scores and weights.

    Args:
        recordings: The runs.
        form: "svg" or "png".

    Raises:
        ArgumentError: No run has an attention whose steps were recorded.
        MissingExtraError: Matplotlib is not installed.
    """
    check_matplotlib(form)
    rows = [row for recording in recordings for row in _rows(recording)]
    if not rows:
        raise ArgumentError(
            "path",
            expected="a name that ends in .html, because this page has no map of scores and weights",
            received=f".{form}",
            remedy="Pictures show attentions whose steps were recorded; a fused kernel has none.",
        )
    from matplotlib.figure import Figure

    columns = max(len(maps) for _, maps, _ in rows)
    size = INCHES * columns, INCHES * min(len(rows), MOST_ROWS)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(min(len(rows), MOST_ROWS), columns, squeeze=False)
    for line, (title, maps, labels) in zip(axes, rows, strict=False):
        for ax in line[len(maps) :]:
            ax.set_axis_off()
        for ax, (name, matrix) in zip(line, maps, strict=False):
            _draw(ax, matrix, labels)
            ax.set_title(f"{title} {name}".strip(), fontsize=9)
    if len(rows) > MOST_ROWS:
        figure.supxlabel(
            f"{MOST_ROWS} of {len(rows)} heads; the page (.html) has all.",
            fontsize=9,
            x=0,
            ha="left",
        )
    return saved(figure, form)


def _rows(recording: Recording) -> list[tuple[str, list[tuple[str, Tensor]], tuple[str, ...]]]:
    """Return the title, the named maps and the labels of each head of each attention."""
    nodes, attentions = nodes_of(recording, LARGEST)
    rows = []
    for attention in attentions:
        positions = [
            position for name in MAPS if (position := getattr(attention, name)) is not None
        ]
        heads = [_heads(nodes[position]) for position in positions]
        for head in range(min(map(len, heads))):
            maps = [(nodes[at].name, heads[i][head]) for i, at in enumerate(positions)]
            numbered = f"head {head}" if len(heads[0]) > 1 else ""
            title = " ".join(part for part in (attention.title, numbered) if part)
            rows.append((title, maps, recording.labels))
    return rows


def _heads(node: Node) -> list[Tensor]:
    """Return the maps (queries, keys) of a node's heads in the first sequence."""
    assert node.value is not None
    rest = [i for i, name in enumerate(node.axes) if name not in (TOKEN, KEY, HEAD)]
    value = node.value
    for axis in reversed(rest):
        value = value.select(axis, 0)
    return [it.double() for it in value.reshape(-1, *value.shape[-2:])]


def _draw(ax: Any, matrix: Tensor, labels: tuple[str, ...]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    finite = matrix[matrix.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 1.0
    colors = LinearSegmentedColormap.from_list("heedful", COLORS)
    ax.set_facecolor("#d5d8dd")
    shown = torch.where(matrix.isfinite(), matrix, torch.nan)
    ax.imshow(
        shown.numpy(), cmap=colors, vmin=-largest or -1, vmax=largest or 1, interpolation="nearest"
    )
    if max(matrix.shape) <= NUMBERED:
        for i, j in torch.cartesian_prod(*map(torch.arange, matrix.shape)).tolist():
            value = matrix[i, j].item()
            text = f"{value:.2f}".replace("-", "−").replace("inf", "∞")
            strong = abs(value) > 0.6 * largest and abs(value) < float("inf")
            ax.text(
                j,
                i,
                text,
                ha="center",
                va="center",
                fontsize=7,
                color="white" if strong else "black",
            )
    if len(labels) == matrix.shape[0] and len(labels) <= 24:
        texts = [drawable(label) for label in labels]
        ax.set_yticks(range(len(labels)), texts, fontsize=7)
        ax.set_xticks(
            range(matrix.shape[1]),
            texts if matrix.shape[1] == len(texts) else None,
            fontsize=7,
            rotation=45,
        )
    else:
        ax.tick_params(labelsize=7)
