"""Runs in which the gradient of a row's maximum is not cut off, though the target detaches it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

MAXIMA: tuple[str, ...] = ("max", "amax", "logsumexp")


class DetachedMaxima(TorchFunctionMode):
    """Return a maximum itself where it is detached.

    It is subtracted before an exponential so that nothing overflows, and cancels later, at most up to an ε.

    Attributes:
        found: Whether any maximum is detached.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: bool = False
        self._maxima: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "detach" and any(args[0] is maximum for maximum in self._maxima):
            self.found = True
            return args[0]
        result = func(*args, **(kwargs or {}))
        if name in MAXIMA:
            self._maxima += [it for it in pytree.tree_leaves(result) if isinstance(it, Tensor)]
        return result
