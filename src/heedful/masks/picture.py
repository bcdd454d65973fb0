"""A small picture of a mask, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Callable

import torch
from torch import Tensor

from heedful import drawing
from heedful.modes import values_known

MOST_CELLS: int = 48
MOST_PANELS: int = 4


def picture_of(
    title: str,
    sizes: tuple[int, int, int, int],
    sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
) -> str:
    """Return a mask as a heat map: one row for each query, dark where it sees a key.

    Of more than 48 tokens, every so many queries and keys are shown, and nothing of T × T entries is built.

    Args:
        title: the mask in words.
        sizes: (B, Hq, Tq, Tk); B and Hq are 1 if the mask treats all sequences or heads alike.
        sees: the mask as a function of indices (batch, head, query, key).
    """
    heading = f"<code>{html.escape(' '.join(title.split()))}</code>"
    if 0 in sizes:
        return f"<p>{heading}: no entries</p>"
    b, h, q, k = (
        torch.arange(0, size, step) for size, step in zip(sizes, _steps(sizes), strict=True)
    )
    b, h = b[:MOST_PANELS], h[:MOST_PANELS]
    shown = sees(b.view(-1, 1, 1, 1), h.view(1, -1, 1, 1), q.view(1, 1, -1, 1), k.view(1, 1, 1, -1))
    if not values_known(shown):
        return f"<p>{heading}: its entries cannot be read</p>"
    shown = shown.expand(len(b), len(h), len(q), len(k))
    _, _, Tq, Tk = sizes
    notes = [f"{Tq} queries × {Tk} keys, one row per query; dark: seen, {_share(shown)}."]
    if shown.shape[2:] != (Tq, Tk):
        _, _, every_q, every_k = _steps(sizes)
        notes.append(f"Shown: one of {every_q} queries and one of {every_k} keys.")
    for name, panels, size in (("sequences", b, sizes[0]), ("heads", h, sizes[1])):
        if size > len(panels):
            notes.append(f"The first {len(panels)} of {size} {name} are shown.")
    panels = shown if shown.shape[:2] != (1, 1) else shown[0, 0]
    drawn = drawing.heat_map(panels, caption=" ".join(notes), numbers=False)
    return f"<style>{drawing.STYLE}</style><div>{heading}{drawn}</div>"


def _steps(sizes: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return of how many sequences, heads, queries and keys one is shown."""
    _, _, Tq, Tk = sizes
    return 1, 1, -(-Tq // MOST_CELLS), -(-Tk // MOST_CELLS)


def _share(shown: Tensor) -> str:
    return f"{shown.double().mean().item():.0%} of the entries"
