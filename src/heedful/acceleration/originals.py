"""PyTorch's operators: their replacement, and their own kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch


class Replacement(NamedTuple):
    """A kernel that takes the place of PyTorch's.

    Attributes:
        operator: the name of an operator of PyTorch's namespace aten.
        keys: the dispatch keys whose kernel is replaced.
        kernel: the new kernel, whose first argument is the set of dispatch keys.
    """

    operator: str
    keys: tuple[str, ...]
    kernel: Callable[..., Any]


_originals: dict[tuple[str, str], torch._C._SafeKernelFunction] = {}
# All of our kernels are kept, because a thread may still be running one that was removed.
_replacements: list[torch._C._SafeKernelFunction] = []


def replace_operators(replacements: Iterable[Replacement]) -> list[torch.library.Library]:
    """Replace kernels, in order, until `restore_operators` gets the result. The original kernels are kept."""
    libraries: list[torch.library.Library] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        for operator, keys, kernel in replacements:
            for key in keys:
                _originals[operator, key] = torch.library.get_kernel(f"aten::{operator}", key)
                libraries.append(torch.library.Library("aten", "IMPL"))
                libraries[-1].impl(operator, kernel, key, with_keyset=True)
                _replacements.append(torch.library.get_kernel(f"aten::{operator}", key))
    _forget_dispatch()
    return libraries


def restore_operators(libraries: list[torch.library.Library]) -> None:
    """Restore the kernels that `replace_operators` replaced.

    The last one comes first: if only the replacement for the dispatch key CPU existed, other threads would find an
    operator without derivatives.
    """
    while libraries:
        libraries.pop()  # which removes its kernel
    _forget_dispatch()


def _forget_dispatch() -> None:
    """Clear what PyTorch's compiler remembers of the kernels of the replaced operators."""
    for operator, _ in _originals:
        getattr(torch.ops.aten, operator).default._dispatch_cache.clear()


def original(operator: str, key: str = "CPU") -> Callable[..., Any]:
    """Return PyTorch's own kernel of an operator that was replaced. Its first argument is the set of dispatch keys."""
    return _originals[operator, key].call_boxed
