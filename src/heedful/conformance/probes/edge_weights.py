"""Probe: the weights of a graph's edges stay normalized."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from heedful.conformance.evidence.chain import DIVISIONS, EXPONENTIALS
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.gathered_weights import Grouping, groupings_of, sum_to_1
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

TOLERANCE = 1e-6
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
