"""Find the step at which two runs on inputs of different sizes diverge."""

from __future__ import annotations

from heedful.conformance.recording.dataflow import steps_from_tokens
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.observation import Step


def first_divergent_step(run: Observation, reference: Observation) -> Step | None:
    """Return the first step of a run that a reference run lacks, or that has another value there.

    Values are compared where their shapes overlap, and only if they depend on the tokens. If the run lacks a step of
    the reference, that step is returned.
    """
    from_tokens = steps_from_tokens(run.trace.steps)
    for step, other in zip(run.trace, reference.trace, strict=False):
        if not _corresponds(step, other):
            skipped = any(
                _corresponds(step, later) for later in reference.trace.steps[step.index :]
            )
            return other if skipped else step
        if step.index not in from_tokens or step.operation.startswith("empty"):
            continue
        value, other_value = tensor_of(step), tensor_of(other)
        if value is None or other_value is None or value.dim() != other_value.dim():
            continue
        overlap = tuple(
            slice(0, min(sizes)) for sizes in zip(value.shape, other_value.shape, strict=True)
        )
        if differing_entries(value[overlap], other_value[overlap]).any():
            return step
    shorter, longer = sorted((run.trace.steps, reference.trace.steps), key=len)
    return next(iter(longer[len(shorter) :]), None)


def _corresponds(step: Step, other: Step) -> bool:
    return (step.operation, step.line) == (other.operation, other.line)
