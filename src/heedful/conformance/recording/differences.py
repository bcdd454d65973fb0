"""Differences between two recorded runs, allowing for rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.conformance.recording.observation import Observation
from heedful.observation import Step

DEFAULT_TOLERANCE = 1e-4
TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}
"""The largest difference that rounding may cause, relative to a result's largest entry."""


def differing_entries(a: Tensor, b: Tensor) -> Tensor:
    """Return a Boolean tensor that is True where two tensors of one shape differ by more than rounding.

    NaN differs from every number, and infinities differ from finite numbers.
    """
    if not a.is_floating_point():
        return a != b
    tolerance = TOLERANCES.get(a.dtype, DEFAULT_TOLERANCE)
    finite = a.abs()[a.isfinite()]
    largest = finite.max().item() if finite.numel() else 1.0
    absolute_tolerance = tolerance * max(largest, 1e-30)
    return ~torch.isclose(a, b, rtol=tolerance, atol=absolute_tolerance, equal_nan=True)


def coarsest_dtype(observation: Observation) -> torch.dtype:
    """Return the floating-point dtype of the steps of a run that rounds most."""
    dtypes = {step.dtype for step in observation.trace} & TOLERANCES.keys()
    return max(dtypes, key=lambda dtype: TOLERANCES[dtype], default=torch.float64)


def same_steps(a: Observation, b: Observation) -> bool:
    """Check whether two runs took the same steps: the same operations, with results of the same shapes."""
    return [(step.operation, step.shape) for step in a.trace] == [
        (step.operation, step.shape) for step in b.trace
    ]


def changed_entries(before: Observation, after: Observation, step: Step) -> Tensor | None:
    """Return a Boolean tensor that is True where another run changed the value of a step.

    Return None if the runs cannot be compared at this step.
    """
    other = after.trace[step.index] if step.index < len(after.trace) else None
    if other is None or other.operation != step.operation or other.shape != step.shape:
        return None
    if not isinstance(step.value, Tensor) or not isinstance(other.value, Tensor):
        return None
    return differing_entries(step.value, other.value)


def indices_with_any(mask: Tensor, axis: int) -> list[int]:
    """Return the indices along an axis at which a Boolean tensor has any True entry."""
    other_axes = [other for other in range(mask.dim()) if other != axis % mask.dim()]
    return torch.nonzero(mask.any(dim=other_axes) if other_axes else mask).flatten().tolist()
