"""Probe: a softmax that is written by hand does not overflow."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.chain import DIVISIONS, EXPONENTIALS
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.gathered_weights import are_ones, groupings_of, sum_to_1
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import VIEWS
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

FACTORS = (10, 100, 10_000)
"""By how much tokens are scaled until a softmax by hand overflows."""


@probe("output-not-finite")
def softmax_overflow(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Scale the tokens until a softmax that is written by hand overflows. It must subtract the largest score first."""
    exponential = _of_softmax_by_hand(evidence)
    if exponential is None or evidence.inputs.vocabulary:
        return
    for factor in FACTORS:
        inputs = evidence.inputs.scaled(factor)
        run = attempt(lambda inputs=inputs: evidence.subject.record(inputs))
        if isinstance(run, Exception) or exponential.index >= len(run.trace.steps):
            return
        overflowing, scores = run.trace[exponential.index], _input(run, exponential.index)
        value = tensor_of(overflowing)
        if value is None or scores is None or overflowing.operation != exponential.operation:
            return
        if scores.isfinite().all() and value.isinf().any() and run.output.isnan().any():
            yield Finding(
                "output-not-finite",
                "suspicious",
                f"With tokens {factor} times as large, the exponential of scores up to {scores.max():.3g} is infinite, "
                "and the output NaN. In float32, scores of 89 suffice.",
                "B = {}, T = {}".format(*inputs.sizes),
                SourceLine.of(exponential),
                "Subtract the largest score of each query from all of its scores first, or call torch.softmax.",
            )
            return


def _of_softmax_by_hand(evidence: Evidence) -> Step | None:
    """Return the exponential whose quotients sum to 1 over the keys, or over the edges of a node; None without one."""
    observation = evidence.baseline
    steps = observation.trace.steps
    for step in steps:
        if step.operation not in DIVISIONS or len(step.inputs) < 2 or tensor_of(step) is None:
            continue
        numerator = step.inputs[0].step
        while numerator is not None and steps[numerator].operation in VIEWS:
            numerator = steps[numerator].inputs[0].step
        if numerator is None or steps[numerator].operation not in EXPONENTIALS:
            continue
        grouped = (sum_to_1(step, it.indices) for it in groupings_of(observation))
        if _sums_to_1(step) or any(grouped):
            return steps[numerator]
    return None


def _sums_to_1(step: Step) -> bool:
    """Check whether a step's value sums to 1 along an axis."""
    value = tensor_of(step)
    axes = () if value is None else (axis for axis, size in enumerate(value.shape) if size > 1)
    return value is not None and any(are_ones(value.sum(axis)) for axis in axes)


def _input(observation: Observation, index: int) -> Tensor | None:
    """Return the tensor that a step reads first."""
    source = next(iter(observation.trace[index].inputs), None)
    return (
        None if source is None or source.step is None else tensor_of(observation.trace[source.step])
    )
