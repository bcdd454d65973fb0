"""A mask on its way through somebody else's model: a tensor whose entries are computed only if the model reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from heedful.masks import Mask

_UNREAD = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class UnbuiltMask(Tensor):
    """A heedful mask in the form that models hand through: Boolean (B, 1, Tq, Tk), True = attend, of no memory.

    Whoever knows it takes `mask`. Any operation on it sees the dense tensor, so that a model that slices or
    combines its masks gets what it expects, at the price of Tq x Tk entries.

    Args:
        mask: the mask; None: every query sees every key.
        shape: (B, Tq, Tk).
        device: where the model would have put a mask.
    """

    mask: Mask | None

    @staticmethod
    def __new__(cls, mask: Mask | None, shape: tuple[int, int, int], device: torch.device):
        B, Tq, Tk = shape
        tensor = Tensor._make_wrapper_subclass(cls, (B, 1, Tq, Tk), dtype=torch.bool, device=device)
        tensor.mask = mask
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _UNREAD:  # as checkpointing and autograd do
            unbuilt = args[0]
            return cls(unbuilt.mask, (len(unbuilt), *unbuilt.shape[2:]), unbuilt.device)
        args, kwargs = pytree.tree_map_only(cls, cls.built, (args, kwargs or {}))
        return func(*args, **kwargs)

    def built(self) -> Tensor:
        """The dense tensor (B, 1, Tq, Tk)."""
        B, _, Tq, Tk = self.shape
        if self.mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        return self.mask.dense(Tq, Tk, batch=B, device=self.device).expand(B, -1, -1, -1)

    def __repr__(self, **_: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"UnbuiltMask({self.mask!r}, shape={tuple(self.shape)})"
