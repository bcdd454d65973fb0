"""A recorded run of a target, and access to the tensors in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from heedful.conformance.recording.inputs import Inputs
from heedful.observation import Source, Step, Trace


@dataclass(frozen=True, eq=False)
class Observation:
    """A recorded run of a target.

    Attributes:
        inputs: The tokens of the run.
        output: The output, (B, T, …), one row for each token.
        trace: The recorded steps.
        values: The tensors that no step produced, by (kind, name) of their `Source`: inputs, parameters, buffers and
            attributes.
        cached_tokens: The number of tokens that the cache already held.
    """

    inputs: Inputs
    output: Tensor
    trace: Trace
    values: Mapping[tuple[str, str], Tensor] = field(default_factory=dict)
    cached_tokens: int = 0


def tensor_of(step: Step) -> Tensor | None:
    """Return the value of a step if the trace kept the whole tensor."""
    return step.value if isinstance(step.value, Tensor) else None


def value_of(observation: Observation, source: object) -> Tensor | None:
    """Return the tensor that a source stands for; None if it was not kept, or if the argument is no source."""
    if not isinstance(source, Source):
        return None
    if source.step is not None:
        return tensor_of(observation.trace[source.step])
    return observation.values.get((source.kind, source.name))
