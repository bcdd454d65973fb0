"""A tensor that carries a heedful mask through a model and computes its entries only if the model reads them.

It has nothing to do with `heedful.lazy`, which defines lazily computed properties.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from heedful.errors import ArgumentError
from heedful.masks import Mask
from heedful.sharded import Sharded

_UNREAD: tuple[Any, ...] = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class LazyMask(Tensor):
    """A heedful mask in the form that models expect: a Boolean tensor (B, 1, Tq, Tk), True = attend, without memory.

    An attention layer that knows this class uses `mask`. Any other operation receives the dense tensor, so that a model
    that slices or combines its masks works, at the price of Tq x Tk entries.

    Args:
        mask: the mask, or None if every query sees every key.
        shape: (B, Tq, Tk).
        device: the device that the model expects the mask on.
        sharded: if tokens are sharded over ranks, how: the mask is of all tokens, and the shape of those of this rank.
    """

    mask: Mask | None
    sharded: Sharded | None

    @staticmethod
    def __new__(
        cls,
        mask: Mask | None,
        shape: tuple[int, int, int],
        device: torch.device,
        sharded: Sharded | None = None,
    ) -> LazyMask:
        B, Tq, Tk = shape
        tensor = Tensor._make_wrapper_subclass(cls, (B, 1, Tq, Tk), dtype=torch.bool, device=device)
        tensor.mask, tensor.sharded = mask, sharded
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _UNREAD:  # checkpointing and autograd call these
            lazy_mask = args[0]
            B, _, Tq, Tk = lazy_mask.shape
            return cls(lazy_mask.mask, (B, Tq, Tk), lazy_mask.device, lazy_mask.sharded)
        args, kwargs = pytree.tree_map_only(cls, cls.materialize, (args, kwargs or {}))
        return func(*args, **kwargs)

    def materialize(self) -> Tensor:
        """Return the dense Boolean tensor (B, 1, Tq, Tk).

        Raises:
            ArgumentError: the tokens are sharded, so that this rank's part of the mask is not what the model expects.
        """
        if self.sharded is not None:
            raise ArgumentError(
                "context_parallel",
                expected="a model that leaves its mask to the attention",
                received="a model that computes with it",
                remedy="Run this model in one process.",
            )
        B, _, Tq, Tk = self.shape
        if self.mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        return self.mask.dense(Tq, Tk, batch=B, device=self.device).expand(B, -1, -1, -1)

    def __repr__(self, **_: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"LazyMask({self.mask!r}, shape={tuple(self.shape)})"
