"""Find the maximum number of tokens that a target accepts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.recording.inputs import Inputs

MAX_TRIED = 256  # longer inputs take too long
AMBIGUOUS = ("block_size",)
"""Names of the maximum number of tokens that are also those of the size of a part of a sequence."""


def find_max_length(caller: Caller) -> int | None:
    """Return the maximum number of tokens; None if there seems to be no limit.

    The sizes of the module's tables (a mask, positions, a cache) and its numbers under conventional names are tried: it
    is the first one that runs while one token more fails. If none can be confirmed, it is the smallest of the numbers.
    A table of positions may have one row more, for padding. A size of blocks is no maximum if a longer sequence runs.
    """
    if caller.module is None:
        return None
    declared, tables = _numbers(caller.module, names.MAX_LENGTHS), _table_sizes(caller.module)
    sizes = sorted({*declared, *tables, *_sizes_without_padding(caller.module)})
    sizes = [size for size in sizes if size <= MAX_TRIED]
    if sizes and not _runs(caller, sizes[-1] + 1):
        size = sizes[bisect_left(sizes, True, key=lambda size: not _runs(caller, size + 1))]
        if _runs(caller, size):
            return size
    unsure = {size for size in _numbers(caller.module, AMBIGUOUS) if _runs(caller, size + 1)}
    return min((size for size in declared if size not in unsure), default=None)


def _runs(caller: Caller, T: int) -> bool:
    try:
        with torch.no_grad():
            caller.run(_without_padding(caller.draw(1, T)))
    except Exception:  # noqa: BLE001 - any exception means that it is too long
        return False
    return True


def _without_padding(inputs: Inputs) -> Inputs:
    """Return inputs without the id 0, which often is padding and may take no position."""
    if not inputs.vocabulary:
        return inputs
    arguments = {name: ids.clamp(min=1) for name, ids in inputs.arguments.items()}
    return replace(inputs, arguments=arguments)


def _numbers(module: nn.Module, attributes: Sequence[str]) -> list[int]:
    """Return the positive numbers that a module, its parts or their configurations hold under some names."""
    return [
        size
        for part in module.modules()
        for holder in (part, getattr(part, "config", None))
        for name in attributes
        if isinstance(size := getattr(holder, name, None), int) and size > 0
    ]


def _sizes_without_padding(module: nn.Module) -> list[int]:
    """Return the numbers of rows of embeddings, without the row for padding."""
    embeddings = (part for part in module.modules() if isinstance(part, nn.Embedding))
    return [it.num_embeddings - 1 for it in embeddings if it.padding_idx is not None]


def _table_sizes(module: nn.Module) -> list[int]:
    """Return the sizes of all axes of all tensors in a module."""
    values = [value for part in module.modules() for value in pytree.tree_leaves(vars(part))]
    return [size for it in values if isinstance(it, Tensor) for size in it.shape if size > 1]
