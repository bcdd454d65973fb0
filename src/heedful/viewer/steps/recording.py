"""A recorded run as the viewer takes it: a trace, the tensors that the call was given, and the tokens' labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heedful.observation import ReachableTensors, Trace, record

LARGEST = 1 << 22
"""The number of entries up to which a tensor is kept whole. Rules and means need the whole of their tensors."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded run.

    Attributes:
        title: What ran.
        trace: Its steps.
        values: The tensors that no step made, by the kind and name of their `Source`: inputs, parameters and buffers.
        labels: The labels of the tokens.
        descriptions: What steps are, by their names.
    """

    title: str
    trace: Trace
    values: Mapping[tuple[str, str], Tensor]
    labels: tuple[str, ...]
    descriptions: Mapping[str, str] = field(default_factory=dict)


def recording_of(
    title: str,
    callable: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    labels: Sequence[str] | None,
) -> Recording:
    """Run a callable, and keep what it was given and every step that it made."""
    values = given_tensors(callable, arguments, keywords)
    trace = record(callable, *arguments, largest=LARGEST, **keywords)
    return Recording(title, trace, values, labels_for((*arguments, *keywords.values()), labels))


def given_tensors(
    callable: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[tuple[str, str], Tensor]:
    """Return copies of the tensors that a call can read, by the kind and name of their sources, before it runs."""
    found: dict[tuple[str, str], Tensor] = {}
    for tensor, source in ReachableTensors(callable, tuple(arguments), dict(keywords)).tensors:
        small = tensor.layout == torch.strided and not tensor.is_meta and tensor.numel() <= LARGEST
        if small and (source.kind, source.name) not in found:
            found[source.kind, source.name] = tensor.detach().clone()
    return found


def labels_for(inputs: Sequence[Any], labels: Sequence[str] | None) -> tuple[str, ...]:
    """Return the given labels, or numbers, one for each token of the first tensor."""
    if labels is not None:
        return tuple(map(str, labels))
    for tensor in inputs:
        if isinstance(tensor, Tensor) and tensor.dim() > 0:
            axis = -2 if tensor.is_floating_point() and tensor.dim() > 1 else -1
            return tuple(f"t{i}" for i in range(tensor.shape[axis]))
    return ()


def labels_of_trace(trace: Trace, labels: Sequence[str] | None) -> tuple[str, ...]:
    """Return the given labels, or numbers, one for each key of the first softmax."""
    if labels is not None or trace.labels:
        return tuple(map(str, labels or trace.labels))
    sizes = [step.shape[-1] for step in trace if step.operation == "softmax" and step.shape]
    return tuple(f"t{i}" for i in range(sizes[0] if sizes else 0))
