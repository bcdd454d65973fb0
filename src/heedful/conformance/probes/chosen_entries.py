"""Runs that keep which entries a target chooses by their size, as a top-k and a sort do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

BY_SIZE: tuple[str, ...] = ("topk", "sort", "argsort", "kthvalue", "argmax", "argmin")


class ChosenEntries(TorchFunctionMode):
    """Keep the indices of what is chosen by size. Where they change, the output jumps, and has no derivative.

    Attributes:
        indices: The indices, in the order in which they are computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.indices: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in BY_SIZE:
            leaves = (it for it in pytree.tree_leaves(result) if isinstance(it, Tensor))
            self.indices += [it.clone() for it in leaves if it.dtype == torch.int64]
        return result

    def differ_from(self, other: ChosenEntries) -> bool:
        """Check whether another run has chosen other entries."""
        pairs = zip(self.indices, other.indices, strict=False)
        return not all(torch.equal(*pair) for pair in pairs)
