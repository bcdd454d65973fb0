"""Runs in which the values that the target computes without gradients stay as they were in the first run."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


class HeldBlocks(TorchFunctionMode):
    """Hold what is computed under `torch.no_grad()` at its values of the first run, as its gradients do.

    Attributes:
        values: The values, in the order in which they are computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []
        self._next: int = 0

    def __enter__(self) -> Self:
        self._next = 0
        return super().__enter__()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = pytree.tree_leaves(result)
        in_place = any(result is operand for operand in args)
        if torch.is_grad_enabled() or in_place or not any(isinstance(it, Tensor) for it in leaves):
            return result
        self._next += 1
        if self._next > len(self.values):
            self.values.append(_copied(result))
        return _copied(self.values[self._next - 1])


def _copied(result: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.clone, result)
