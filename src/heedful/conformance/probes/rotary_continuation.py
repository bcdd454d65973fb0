"""Check that rotary positions continue beyond the first tokens: tables must not wrap around or end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.rotations import TOLERANCE, Rotation, recover_maps
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.observation import Step

LONG = 65  # tokens
MAX_RUNS = 4
MIN_BREAK = 0.05  # anything smaller is rounding


def check_continuation(evidence: Evidence, query: Rotation, key: Rotation) -> Finding | None:
    """Compare neighbouring tokens of longer sequences: all of them must be rotated against each other alike."""
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    if _has_given_positions(evidence, query):
        return None
    long = min(subject.max_length or LONG, LONG)
    D = key.maps.shape[-1]
    heads = torch.Size(key.steps[0].shape).numel() // (B * T * D)
    runs = D // (B * heads) + 1
    if long <= T or runs > MAX_RUNS:
        return None
    observations = [
        attempt(lambda seed=seed: subject.record(subject.draw(B, long, seed=seed)))
        for seed in range(runs)
    ]
    if any(isinstance(observation, Exception) for observation in observations):
        return None
    query_maps, key_maps = (_recover_again(observations, rotation) for rotation in (query, key))
    if query_maps is None or key_maps is None:
        return None
    neighbours = query_maps[1:].mT @ key_maps[:-1]
    differences = (neighbours - neighbours[0]).abs().amax((1, 2))
    t = int((differences > TOLERANCE).int().argmax()) + 1
    if differences[t - 1] < MIN_BREAK or _are_distinct(query_maps):
        return None
    return Finding(
        "length-dependent",
        "bug",
        f"Tokens {t - 1} and {t} are not rotated against each other like tokens 0 and 1: positions do not continue.",
        f"T = {long}",
        SourceLine.of(_first_break(observations[0], query, t)),
    )


def _has_given_positions(evidence: Evidence, rotation: Rotation) -> bool:
    """Check whether the angles come from an argument of an example, whose positions are the caller's."""
    convention, steps = evidence.subject.convention, evidence.baseline.trace.steps
    read = ancestors(steps, rotation.steps[-1])
    names = {source.name for i in read for source in steps[i].inputs if source.kind == "input"}
    given = {name.partition("[")[0].partition(".")[0] for name in names} & {*convention.constants}
    return convention.from_example and bool(given)


def _recover_again(observations: Sequence[Observation], rotation: Rotation) -> Tensor | None:
    """Return the maps of a rotation in longer runs; None if these take other steps."""
    steps = observations[0].trace.steps
    for step in rotation.steps:
        if step.index >= len(steps):
            return None
        other = steps[step.index]
        if (other.line, other.operation) != (step.line, step.operation):
            return None
    first, last = (steps[step.index] for step in (rotation.steps[0], rotation.steps[-1]))
    return recover_maps(observations, first, last)


def _are_distinct(maps: Tensor) -> bool:
    """Check whether no two tokens are rotated alike: then a break begins the next row of patches, and is meant."""
    flat = maps.flatten(1)
    distances = torch.cdist(flat, flat, p=torch.inf)
    return bool((distances[~torch.eye(len(flat), dtype=torch.bool)] > TOLERANCE).all())


def _first_break(observation: Observation, rotation: Rotation, t: int) -> Step | None:
    """Return the first step behind a rotation whose values grow steadily up to token t and not beyond."""
    steps, T = observation.trace.steps, observation.inputs.sizes[1]
    first, last = (steps[step.index] for step in (rotation.steps[0], rotation.steps[-1]))
    for index in sorted(ancestors(steps, last) - ancestors(steps, first)):
        value = tensor_of(steps[index])
        if value is None or T not in value.shape or value.dtype == torch.bool:
            continue
        rows = value.double().movedim(value.shape.index(T), 0).reshape(T, -1)
        bends = rows.diff(n=2, dim=0).abs().amax(1) > TOLERANCE
        if bends.any() and not bends[: t - 2].any():
            return steps[index]
    return None
