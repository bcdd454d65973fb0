"""How many tokens a target takes: as it says, and as its tables bear out."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from heedful.conformance.calling.subject import Subject

NAMES = (
    *("context_length", "block_size", "max_seq_len", "max_len", "n_positions", "n_ctx"),
    *("max_position_embeddings", "context_size", "max_seq_length", "max_length"),
)
TRIED = 256  # longer inputs take too long to try


def find_max_length(subject: Subject) -> int | None:
    """The most tokens that a subject takes; None where there seems to be no limit.

    That is the size of a table of its, be it a mask, of positions, a cache, or a number with one of the usual names, if
    one token more cannot be run. Where that cannot be tried, the number is believed.
    """
    module = subject.module
    if module is None:
        return None
    said = _said(module)
    sizes = sorted({size for size in (*said, *_table_sizes(module)) if size <= TRIED})
    if sizes and not _runs(subject, sizes[-1] + 1):
        size = sizes[bisect_left(sizes, True, key=lambda it: not _runs(subject, it + 1))]
        if _runs(subject, size):
            return size
    return min(said, default=None)


def _runs(subject: Subject, T: int) -> bool:
    try:
        with torch.no_grad():
            subject.run(subject.draw(1, T))
    except Exception:  # noqa: BLE001 - whatever says that it is too long
        return False
    return True


def _said(module: nn.Module) -> list[int]:
    return [
        size
        for part in module.modules()
        for holder in (part, getattr(part, "config", None))
        for name in NAMES
        if isinstance(size := getattr(holder, name, None), int) and size > 0
    ]


def _table_sizes(module: nn.Module) -> list[int]:
    """The sizes of all tensors that a module holds."""
    held = [it for part in module.modules() for it in pytree.tree_leaves(vars(part))]
    return [size for it in held if isinstance(it, Tensor) for size in it.shape if size > 1]
