"""Tensors left over at the top level of a target's file, and the sizes to which they tie a function that reads them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

BATCH = 2  # where the tensor says nothing of it


def tied_sizes(target: Any) -> list[tuple[int, int]]:
    """B and T with which a target may run if it reads a global tensor in place of one of its own.

    Args:
        target: a module or a function.
    """
    held = [it for function in _functions(target) for it in _globals_read(function)]
    sizes = [(it.shape[0] if it.dim() > 2 else BATCH, it.shape[-2]) for it in held if it.dim() >= 2]
    return list(dict.fromkeys(sizes))


def _functions(target: Any) -> Iterator[FunctionType]:
    """What a target's own code is."""
    if inspect.isfunction(target):
        yield target
    elif isinstance(target, nn.Module):
        for kind in dict.fromkeys(type(part) for part in target.modules()):
            yield from (it for it in vars(kind).values() if inspect.isfunction(it))


def _globals_read(function: FunctionType) -> Iterator[Tensor]:
    for name in _names(function.__code__):
        if isinstance(value := function.__globals__.get(name), Tensor):
            yield value


def _names(code: CodeType) -> Iterator[str]:
    """The globals and attributes that code names, and the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
