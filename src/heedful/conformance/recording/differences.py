"""What follows from one changed token: which entries of each recorded step are others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.conformance.recording.inputs import Observation
from heedful.observation import Step

EXACT = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def differing_entries(a: Tensor, b: Tensor) -> Tensor:
    """Which entries of two tensors of one shape are others, rounding apart: Boolean.

    NaN differs from every number, and infinities from finite ones.
    """
    if not a.is_floating_point():
        return a != b
    tolerance = EXACT.get(a.dtype, 1e-4)
    finite = a.abs()[a.isfinite()]
    size = finite.max().item() if finite.numel() else 1.0
    same = torch.isclose(a, b, rtol=tolerance, atol=tolerance * max(size, 1e-30), equal_nan=True)
    return ~same


def same_steps(a: Observation, b: Observation) -> bool:
    """Whether two runs took the same steps."""
    return [(step.operation, step.shape) for step in a.trace] == [
        (step.operation, step.shape) for step in b.trace
    ]


def changed_entries(before: Observation, after: Observation, step: Step) -> Tensor | None:
    """Which entries of a step's value are others in another run; None where that cannot be told."""
    other = after.trace[step.index] if step.index < len(after.trace) else None
    if other is None or other.operation != step.operation or other.shape != step.shape:
        return None
    if not isinstance(step.value, Tensor) or not isinstance(other.value, Tensor):
        return None
    return differing_entries(step.value, other.value)


def indices_with_any(mask: Tensor, axis: int) -> list[int]:
    """The indices along an axis at which a Boolean tensor is True anywhere."""
    others = [d for d in range(mask.dim()) if d != axis % mask.dim()]
    return torch.nonzero(mask.any(dim=others) if others else mask).flatten().tolist()


def ancestors(steps: Sequence[Step], start: Step) -> set[int]:
    """The indices of the steps that a step's result was made from, its own included."""
    found, todo = set(), [start.index]
    while todo:
        index = todo.pop()
        if index in found:
            continue
        found.add(index)
        todo += [it.step for it in steps[index].inputs if it.step is not None]
    return found


def unused_steps(steps: Sequence[Step]) -> set[int]:
    """The indices of the steps that come to nothing: they, and all that is made of them, are used by nothing."""
    readers: dict[int, list[int]] = {}
    for step in steps:
        for source in step.inputs:
            if source.step is not None:
                readers.setdefault(source.step, []).append(step.index)
    found: set[int] = set()
    for step in reversed(steps):
        read = readers.get(step.index)
        returned = step.name.startswith("output")
        if step.unused or (read and all(it in found for it in read) and not returned):
            found.add(step.index)
    return found
