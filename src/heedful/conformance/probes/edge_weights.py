"""Probe: the weights of a graph's edges stay normalized, and a softmax by hand does not overflow."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.chain import DIVISIONS, EXPONENTIALS
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.gathered_weights import Grouping, groupings_of, sum_to_1
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import VIEWS, ancestors
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

TOLERANCE = 1e-6
FACTORS = (10, 100, 10_000)
"""By how much tokens are scaled until a softmax by hand overflows."""
SCALINGS: tuple[str, ...] = (*DIVISIONS, "mul", "mul_", "imul", "multiply")


@probe("rows-not-normalised")
def edge_weights(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Follow the weights of edges from their softmax to the values: no number may multiply all of them."""
    observation = evidence.baseline
    for gathering in groupings_of(observation):
        weights = _quotient(observation, gathering)
        step = None if weights is None else _scaled(observation, weights, gathering)
        if step is None or weights is None:
            continue
        before, after = tensor_of(weights), tensor_of(step)
        assert before is not None
        assert after is not None
        yield Finding(
            "rows-not-normalised",
            "bug",
            f"All weights are multiplied by {(after.norm() / before.norm()).item():.3g} after the softmax, so those of "
            "a node's edges do not sum to 1.",
            f"{len(gathering.indices)} edges",
            SourceLine.of(step),
            "Scale the scores before the softmax, not the weights.",
        )
        return


def _quotient(observation: Observation, gathering: Grouping) -> Step | None:
    """Return the quotient of exponentials that sums to 1 over the entries that are gathered; None without one."""
    steps = observation.trace.steps
    start = gathering.source.step
    for index in sorted(set() if start is None else ancestors(steps, steps[start])):
        step = steps[index]
        behind = ancestors(steps, step) if step.operation in DIVISIONS else set[int]()
        of_exponentials = any(steps[it].operation in EXPONENTIALS for it in behind)
        if of_exponentials and sum_to_1(step, gathering.indices):
            return step
    return None


def _scaled(observation: Observation, weights: Step, gathering: Grouping) -> Step | None:
    """Return the first step between weights and values that multiplies all weights by one number other than 1."""
    steps, usual = observation.trace.steps, tensor_of(weights)
    assert usual is not None
    assert gathering.source.step is not None
    way = ancestors(steps, steps[gathering.source.step])
    reached = {weights.index}
    for step in steps[weights.index + 1 :]:
        value = tensor_of(step)
        read = [it for it in step.inputs if it.step in reached]
        if step.index not in way or not read or value is None or value.numel() != usual.numel():
            continue
        reached.add(step.index)
        if step.operation in SCALINGS and not any(it.kind == "parameter" for it in step.inputs):
            factor = (value.norm() / usual.norm()).item()
            same = torch.allclose(value.reshape(usual.shape), factor * usual)
            if same and abs(factor - 1) > TOLERANCE:
                return step
    return None


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
    value = tensor_of(step)
    axes = () if value is None else (axis for axis, size in enumerate(value.shape) if size > 1)
    return value is not None and any(
        torch.allclose(sums := value.sum(axis), torch.ones_like(sums), atol=TOLERANCE)
        for axis in axes
    )


def _input(observation: Observation, index: int) -> Tensor | None:
    """Return the tensor that a step reads first."""
    source = next(iter(observation.trace[index].inputs), None)
    return (
        None if source is None or source.step is None else tensor_of(observation.trace[source.step])
    )
