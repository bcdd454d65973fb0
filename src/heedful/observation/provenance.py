"""Which step a tensor came from: followed through views and through writes in place."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from heedful.observation.trace import Source

# Writes remembered per memory block. A loop that fills one buffer through a new view each time would
# otherwise make every read of it slower than the last.
WRITES_REMEMBERED = 64

# Two strided views may interleave without sharing an element (`q, k, v = x.chunk(3, -1)`). Telling is
# exact within this much work; beyond it they are taken to overlap.
OVERLAP_WORK = 10_000


class _Write(NamedTuple):
    step: int
    addresses: numpy.ndarray


class Provenance:
    """Knows every tensor's origin without keeping any tensor alive."""

    def __init__(self) -> None:
        self._origins = WeakTensorKeyDictionary()
        self._writes: dict[StorageWeakRef, deque[_Write]] = {}

    def is_known(self, tensor: Tensor) -> bool:
        return tensor in self._origins

    def came_from(self, tensor: Tensor, source: Source) -> None:
        """Say that a tensor comes from outside the recording, or is the result of a step."""
        self._origins[tensor] = source

    def was_written(self, tensor: Tensor, step: int) -> int | None:
        """Say that a step wrote into a tensor, and so into all that share its memory.

        Returns the step of an older write that is forgotten for it, if there were too many.
        """
        self._origins[tensor] = Source("step", "", step)
        memory = _memory_of(tensor)
        if memory is None:
            return None
        writes = self._writes.setdefault(memory, deque())
        writes.append(_Write(step, _addresses(tensor)))
        return writes.popleft().step if len(writes) > WRITES_REMEMBERED else None

    def sources(self, tensor: Tensor) -> tuple[Source, ...]:
        """A known tensor's origin, then the steps that wrote into its memory since through others."""
        origin: Source = self._origins[tensor]
        memory = _memory_of(tensor)
        writes = self._writes.get(memory, ()) if memory is not None else ()
        since = [write for write in writes if origin.step is None or write.step > origin.step]
        if not since:
            return (origin,)
        mine = _addresses(tensor)
        return origin, *(
            Source("step", "", write.step) for write in since if _overlap(write.addresses, mine)
        )


class Keeper:
    """Tells later whether anybody still holds a tensor or, if it was overwritten, its memory."""

    def __init__(self, tensor: Tensor, *, in_place: bool) -> None:
        self._tensor = TensorWeakRef(tensor)
        self._memory = _memory_of(tensor) if in_place else None

    def holds(self) -> bool:
        if self._memory is not None and not self._memory.expired():
            return True
        return self._tensor() is not None


def _memory_of(tensor: Tensor) -> StorageWeakRef | None:
    """The memory block behind a tensor: its address stays taken as long as this reference lives."""
    if tensor.layout != torch.strided or is_functorch_wrapped_tensor(tensor):
        return None
    return StorageWeakRef(tensor.untyped_storage())


class _Interface:
    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            # Never followed, only compared, so any address but null will do for the block's start.
            "data": (4096 + tensor.storage_offset() * size, True),
        }


def _addresses(tensor: Tensor) -> numpy.ndarray:
    """The positions within its memory block that a tensor covers, as an array never to be read."""
    if tensor.is_nested:
        return numpy.empty(0)
    return numpy.asarray(_Interface(tensor))


def _overlap(one: numpy.ndarray, other: numpy.ndarray) -> bool:
    # The stub knows only the two named amounts of work.
    return numpy.may_share_memory(one, other, max_work=OVERLAP_WORK)  # pyright: ignore[reportArgumentType]
