"""A picture of a model's heads: a grid of small maps, or the map of one head with its tokens."""

# The imports within functions come with an extra:
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heedful.errors import ArgumentError
from heedful.viewer.heads.heads import POOL, Heads
from heedful.viewer.heads.payload import SIDE_OF_OVERVIEW, Head, blocks_of
from heedful.viewer.heads.pooling import color_limits
from heedful.viewer.pictures import COLORS, check_matplotlib, drawable, saved

INCHES_OF_HEAD = 0.62
INCHES_OF_MAP = 7.0
MOST_LABELS = 60
LONGEST_WORD = 40  # characters of a title's word


def picture_of_heads(named: Sequence[tuple[str, Heads]], form: str, title: str) -> bytes:
    """Return a picture of a model's heads, or of several models' or kinds of attention side by side.

    Args:
        named: The heads, with their names; "" for one that needs none.
        form: "svg" or "png".
        title: The heading.

    Raises:
        ArgumentError: The summaries have no maps.
        MissingExtraError: Matplotlib is not installed.
    """
    check_matplotlib(form)
    from matplotlib.figure import Figure

    models = [model for _, model in named]
    layers = max(len(model.sizes) for model in models)
    most = [max(heads for heads, _, _ in model.sizes) for model in models]
    single = layers == 1 and max(most) == 1
    if any(
        blocks_of(Head(it, 0), POOL) is None for model in models for it in model.layers.values()
    ):
        raise ArgumentError(
            "path",
            expected="a name that ends in .html, because these summaries have no maps",
            received=f".{form}",
            remedy="Ask for pool=512, or for rows=range(T) of a short text.",
        )
    height = INCHES_OF_MAP if single else INCHES_OF_HEAD * layers + 0.8
    widths = [INCHES_OF_MAP if single else INCHES_OF_HEAD * it + 1.0 for it in most]
    figure = Figure(figsize=(sum(widths), height), layout="constrained")
    figure.suptitle(drawable_title(title), fontsize=10)
    axes = figure.subplots(1, len(models), squeeze=False, width_ratios=widths)[0]
    for ax, (name, model) in zip(axes, named, strict=True):
        (_draw_map if single else _draw_grid)(ax, model)
        ax.set_title(name, fontsize=9)
    return saved(figure, form)


def drawable_title(title: str) -> str:
    """Return a title, each word of which is at most as long as the name of a model."""
    return " ".join(drawable(word, LONGEST_WORD) for word in title.split(" ")[:12])


def _colors() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("weights", COLORS[len(COLORS) // 2 :])


def _draw_grid(ax: Any, model: Heads) -> None:
    """Draw layers as rows and heads as columns."""
    for row, layer in enumerate(model.layers.values()):
        for h in range(layer.lse.shape[1]):
            found = blocks_of(Head(layer, h), SIDE_OF_OVERVIEW)
            assert found is not None
            mean, _, cell = found
            shares = (mean / color_limits(mean, single=cell == (1, 1))).clamp(0, 1).sqrt()
            place = (h - 0.45, h + 0.45, row + 0.45, row - 0.45)
            ax.imshow(
                shares.numpy(),
                cmap=_colors(),
                vmin=0,
                vmax=1,
                extent=place,
                interpolation="nearest",
            )
    most = max(sizes[0] for sizes in model.sizes)
    ax.set(
        xlim=(-0.6, most - 0.4),
        ylim=(len(model.layers) - 0.4, -0.6),
        aspect="equal",
        xlabel="head",
        ylabel="layer",
    )
    ax.set_xticks(range(most), range(most), fontsize=7)
    ax.set_yticks(range(len(model.layers)), [drawable(it) for it in model.short_names], fontsize=7)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def _draw_map(ax: Any, model: Heads) -> None:
    """Draw the map of the one head, with tokens at both sides if there is room for them."""
    head = Head(next(iter(model.layers.values())), 0)
    found = blocks_of(head, POOL)
    assert found is not None
    mean, _, cell = found
    single = cell == (1, 1)
    limit = color_limits(mean, single=single).item()
    rows, columns = head.length
    image = ax.imshow(
        (mean / limit).clamp(0, 1).sqrt().numpy(),
        cmap=_colors(),
        vmin=0,
        vmax=1,
        interpolation="nearest" if single else "auto",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
        aspect="auto" if rows != columns else "equal",
    )
    bar = ax.figure.colorbar(image, ax=ax, shrink=0.5, ticks=[0, 0.5**0.5, 1])
    bar.ax.set_yticklabels([f"{limit * share:.3g}" for share in (0, 0.5, 1)], fontsize=7)
    bar.set_label(
        f"weight{'' if single else f', mean of {cell.queries} × {cell.keys}'}; colors follow the square root",
        fontsize=7,
    )
    texts = [drawable(it) for it in model.labels]
    of_keys = texts if model.key_labels is None else [drawable(it) for it in model.key_labels]
    if len(texts) == rows <= MOST_LABELS:
        ax.set_yticks(range(rows), texts, fontsize=6)
    if len(of_keys) == columns <= MOST_LABELS:
        ax.set_xticks(range(columns), of_keys, fontsize=6, rotation=90)
    ax.set(xlabel="key", ylabel="query")
