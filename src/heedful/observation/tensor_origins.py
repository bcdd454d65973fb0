"""The step that each tensor came from, tracked through views and in-place writes."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from heedful.observation.step import Source

# A loop that fills one buffer through a new view in each iteration would otherwise make every read of the buffer
# slower than the last.
MAX_WRITES_PER_STORAGE: int = 64

# Two strided views may interleave without sharing an element (`q, k, v = x.chunk(3, -1)`). The overlap test is exact
# within this amount of work; beyond it, the views are assumed to overlap.
MAX_OVERLAP_WORK: int = 10_000


class _Write(NamedTuple):
    step: int
    addresses: numpy.ndarray


class TensorOrigins:
    """The origin of every known tensor. Tensors are referenced weakly, so this keeps none of them alive."""

    def __init__(self) -> None:
        self._origins = WeakTensorKeyDictionary()
        self._writes: dict[StorageWeakRef, deque[_Write]] = {}

    def is_known(self, tensor: Tensor) -> bool:
        """Check whether the origin of a tensor has been set."""
        return tensor in self._origins

    def set_origin(self, tensor: Tensor, source: Source) -> None:
        """Register a tensor as the result of a step, or as one from outside the recording."""
        self._origins[tensor] = source

    def add_write(self, tensor: Tensor, step: int) -> int | None:
        """Register that a step wrote into a tensor, and so into all tensors that share its memory.

        Returns:
            The step of an older write that was discarded to make room, if any.
        """
        self._origins[tensor] = Source("step", "", step)
        storage = _storage(tensor)
        if storage is None:
            return None
        writes = self._writes.setdefault(storage, deque())
        writes.append(_Write(step, _addresses(tensor)))
        return writes.popleft().step if len(writes) > MAX_WRITES_PER_STORAGE else None

    def sources(self, tensor: Tensor) -> tuple[Source, ...]:
        """Return a known tensor's origin, followed by the later steps that wrote into its memory through others."""
        origin: Source = self._origins[tensor]
        storage = _storage(tensor) if self._writes else None
        writes = self._writes.get(storage, ()) if storage is not None else ()
        later = [write for write in writes if origin.step is None or write.step > origin.step]
        if not later:
            return (origin,)
        addresses = _addresses(tensor)
        return origin, *(
            Source("step", "", write.step)
            for write in later
            if _overlap(write.addresses, addresses)
        )


class TensorLiveness:
    """A weak reference that reveals whether a tensor, or the memory that it overwrote, is still in use."""

    def __init__(self, tensor: Tensor, *, in_place: bool) -> None:
        self._tensor = TensorWeakRef(tensor)
        self._storage = _storage(tensor) if in_place else None

    def is_alive(self) -> bool:
        """Check whether anything still holds the tensor or, if it was overwritten in place, its memory."""
        if self._storage is not None and not self._storage.expired():
            return True
        return self._tensor() is not None


def _storage(tensor: Tensor) -> StorageWeakRef | None:
    """Return a weak reference to a tensor's memory, whose address is not reused as long as the reference lives."""
    if tensor.layout != torch.strided or is_functorch_wrapped_tensor(tensor):
        return None
    return StorageWeakRef(tensor.untyped_storage())


class _ArrayInterface:
    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            # The address is only compared and never read, so any start but null will do.
            "data": (4096 + tensor.storage_offset() * size, True),
        }


def _addresses(tensor: Tensor) -> numpy.ndarray:
    """Return an array that covers the tensor's positions within its storage. It must never be read."""
    if tensor.is_nested:
        return numpy.empty(0)
    return numpy.asarray(_ArrayInterface(tensor))


def _overlap(first: numpy.ndarray, second: numpy.ndarray) -> bool:
    # The stub knows only the two named amounts of work.
    return numpy.may_share_memory(first, second, max_work=MAX_OVERLAP_WORK)  # pyright: ignore[reportArgumentType]
