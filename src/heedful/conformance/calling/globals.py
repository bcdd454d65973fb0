"""Tensors at module level that a target's code reads, and the sizes that they require."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor

from heedful.conformance.recording.target_source import functions_of

BATCH = 2  # where a global tensor has no batch axis


def global_tensor_sizes(target: Callable[..., Any]) -> list[tuple[int, int]]:
    """Return the B and T that a module or function may require because it reads a global tensor by mistake."""
    tensors = [tensor for function in functions_of(target) for tensor in _globals_read(function)]
    sizes = [
        (tensor.shape[0] if tensor.dim() > 2 else BATCH, tensor.shape[-2])
        for tensor in tensors
        if tensor.dim() >= 2
    ]
    return list(dict.fromkeys(sizes))


def _globals_read(function: FunctionType) -> Iterator[Tensor]:
    for name in _referenced_names(function.__code__):
        if isinstance(value := function.__globals__.get(name), Tensor):
            yield value


def _referenced_names(code: CodeType) -> Iterator[str]:
    """Yield the globals and attributes that code names, including those in nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _referenced_names(constant)
