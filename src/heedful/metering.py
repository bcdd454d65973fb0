"""How much memory a kernel's tensors take, found by running it on tensors without memory (the device "meta")."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from heedful.intervals import Intervals
from heedful.masks import Dense, Mask
from heedful.problem import AttentionProblem


def peak_bytes(problem: AttentionProblem, run: Callable[[AttentionProblem], Any]) -> int:
    """Return the largest number of bytes of tensors that exist at once while `run` runs, in addition to its arguments.

    Args:
        problem: the problem; its mask is lowered to key ranges, and nothing else is computed.
        run: what to measure. It gets the same problem on the device "meta" and returns tensors or None.

    Returns:
        The peak, with the tensors that `run` returns, and with those of the lowered mask unless it is remembered.
    """
    mask = problem.mask
    with torch.random.fork_rng(devices=()), _Meter() as lowering:
        ranges = mask.intervals_on(problem.grid) if isinstance(mask, Mask) else None
    stand_in = _without_memory(problem, ranges)
    with torch.random.fork_rng(devices=()), _Meter(stand_in) as running:
        run(stand_in)
    if isinstance(mask, Mask) and mask.constant:
        return running.peak
    return max(lowering.peak, lowering.live + running.peak)


def _without_memory(problem: AttentionProblem, ranges: Intervals | None) -> AttentionProblem:
    """Return the problem on the device "meta", where it is known what the values of the mask's tensors entail."""
    stand_in = replace(
        problem,
        query=_on_meta(problem.query),
        key=_on_meta(problem.key),
        value=_on_meta(problem.value),
        bias=None if problem.bias is None else _on_meta(problem.bias),
        sinks=None if problem.sinks is None else _on_meta(problem.sinks),
    )
    known: dict[str, Any] = {"intervals": None}
    if ranges is not None:
        known["intervals"] = Intervals(_on_meta(ranges.start), _on_meta(ranges.stop), ranges.Tk)
    caller_owns_mask = isinstance(problem.mask, Dense)
    if caller_owns_mask and problem.dense_mask is not None:
        known["dense_mask"] = _on_meta(problem.dense_mask)
    for name in ("unseen_keys", "empty_rows"):
        if getattr(problem, name) is None:
            known[name] = None
    for name, value in known.items():
        object.__setattr__(stand_in, name, value)
    return stand_in


def _on_meta(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape, strides and dtype that has no memory."""
    stand_in = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return stand_in.requires_grad_(tensor.requires_grad)


class _Meter(TorchDispatchMode):
    """Counts the bytes of the tensors that operations allocate, until they are freed."""

    def __init__(self, problem: AttentionProblem | None = None) -> None:
        super().__init__()
        self.live: int = 0
        self.peak: int = 0
        self.seen: WeakIdKeyDictionary = WeakIdKeyDictionary()
        for tensor in vars(problem).values() if problem else ():
            if isinstance(tensor, Tensor):
                self.seen[tensor.untyped_storage()] = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and not func.is_view:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self.seen:
            return
        size = storage.nbytes()
        self.seen[storage] = True
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live -= size
