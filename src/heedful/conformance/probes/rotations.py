"""Recover from recorded runs the matrices that rotate queries and keys by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.dataflow import (
    JOINING,
    VIEWS,
    is_projection,
    steps_from_projection,
)
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.observation import Source, Step

MAX_RUNS = 24
TOLERANCE = 1e-5  # tables of angles are often in float32


@dataclass(frozen=True, eq=False)
class Rotation:
    """The linear map that is applied to queries, or to keys, at each position.

    Attributes:
        maps: (T, D, D), the matrix for each position: after = map @ before.
        steps: the recorded steps from the projected features to the rotated ones, both included.
    """

    maps: Tensor
    steps: tuple[Step, ...]

    @property
    def layout(self) -> str | None:
        """The pairs of features that are rotated together: "half", "interleaved", or None if neither fits."""
        entries = (self.maps.abs() > TOLERANCE).any(0)
        rotated = int((entries.sum(1) > 1).sum())
        rows = [set(row.nonzero().flatten().tolist()) for row in entries[:rotated]]
        fits = {
            "half": all(len({j % (rotated // 2) for j in row}) == 1 for row in rows),
            "interleaved": all(len({j // 2 for j in row}) == 1 for row in rows),
        }
        layouts = [name for name, fit in fits.items() if fit]
        return layouts[0] if rotated > 2 and len(layouts) == 1 else None

    @property
    def preserves_norms(self) -> bool:
        """True if each map is a rotation, up to one factor for all of them."""
        products = self.maps.mT @ self.maps
        factor = products[0].diagonal().mean()
        return is_near(products, factor * torch.eye(len(products[0]), dtype=products.dtype))


class _Span(NamedTuple):
    """Two steps of one shape between which a rotation may lie, and all steps from one to the other."""

    before: Step
    after: Step
    steps: tuple[Step, ...]


def find_rotations(
    evidence: Evidence, attention: RecordedAttention
) -> tuple[Rotation | None, Rotation | None]:
    """Return the rotations of the queries and of the keys of an attention.

    Returns:
        None for both if there are none, or if those of one side cannot be recovered; None for one side if it is
        certain that this side is not rotated.
    """
    D = attention.query.shape[-1]
    if D < 2 or attention.key.shape[-1] != D:
        return None, None
    query, key = (
        _spans(evidence.baseline, source, D)
        for source in (attention.query_source, attention.key_source)
    )
    if not query and not key:
        return None, None
    T = evidence.inputs.sizes[1]
    rows = min(_rows_at_each(T, spans[0].before) for spans in (query, key) if spans)
    observations = _enough_runs(evidence, rows, D)
    sides = _find_rotation(observations, query), _find_rotation(observations, key)
    unknown = any(
        side is None and not _is_unrotated(observations, source, spans)
        for side, source, spans in (
            (sides[0], attention.query_source, query),
            (sides[1], attention.key_source, key),
        )
    )
    return (None, None) if unknown else sides


def _spans(observation: Observation, source: Source, D: int) -> list[_Span]:
    """Return the spans on the way from the projection that a rotation may occupy, the widest first."""
    T = observation.inputs.sizes[1]
    path = steps_from_projection(observation, source)
    steps = [
        step
        for step in path
        if len(step.shape) > 1 and step.shape[-1] == D and T in step.shape[:-1]
    ]
    return [
        _Span(
            before,
            after,
            tuple(step for step in path if before.index <= step.index <= after.index),
        )
        for after in reversed(steps)
        for before in steps
        if before.index < after.index and before.shape == after.shape
    ]


def _enough_runs(evidence: Evidence, rows: int, D: int) -> list[Observation]:
    """Return the baseline and so many runs on other tokens that they determine a matrix (D, D), or `MAX_RUNS`.

    Args:
        evidence: The runs.
        rows: The number of rows that the matrix maps in one run.
        D: The head size.
    """
    count = min(math.ceil((D + 3) / rows), MAX_RUNS)
    return [evidence.baseline, *map(evidence.on_other_tokens, range(1, count))]


def _rows_at_each(size: int, step: Step) -> int:
    """Return the number of rows of a step at each index of an axis of this size."""
    return math.prod(step.shape[:-1]) // size


def _find_rotation(observations: Sequence[Observation], spans: Sequence[_Span]) -> Rotation | None:
    """Return the rotation of the first span whose maps differ between positions."""
    for span in spans:
        maps = recover_maps(observations, span.before, span.after)
        if maps is not None and not is_near(maps, maps[:1]):
            return _rotation(maps, span)
    return None


def _rotation(maps: Tensor, span: _Span) -> Rotation:
    """Return the rotation within a span, without the steps that only copy its result."""
    last = next(step for step in span.steps if _have_equal_values(step, span.after))
    return Rotation(maps, tuple(step for step in span.steps if step.index <= last.index))


def _is_unrotated(
    observations: Sequence[Observation], source: Source, spans: Sequence[_Span]
) -> bool:
    """Check that the same map is applied at each position, all the way from the projection to the product."""
    path = [
        step for step in steps_from_projection(observations[0], source) if not is_projection(step)
    ]
    before_spans = [step for step in path if not spans or step.index <= spans[0].before.index]
    if any(step.operation not in VIEWS or step.operation in JOINING for step in before_spans):
        return False  # a part of the features may have been rotated there
    if not spans:
        return True
    maps = recover_maps(observations, spans[0].before, spans[0].after)
    return maps is not None and is_near(maps, maps[:1])


def _have_equal_values(step: Step, other: Step) -> bool:
    value, other_value = tensor_of(step), tensor_of(other)
    return value is not None and other_value is not None and torch.equal(value, other_value)


def recover_maps(
    observations: Sequence[Observation], before: Step, after: Step, axis: int | None = None
) -> Tensor | None:
    """Solve for the matrices (T, D, D) that map the rows of one step to those of another.

    Args:
        observations: The runs.
        before: The step that has the rows.
        after: A later step of the same shape.
        axis: The axis that has a matrix for each index; None for that of the tokens.

    Returns:
        None if there are too few rows, or if no matrices map them.
    """
    x, y = (_rows_by_position(observations, step, axis) for step in (before, after))
    if x is None or y is None or x.shape != y.shape or x.shape[1] <= x.shape[2]:
        return None
    if not (x.isfinite().all() and y.isfinite().all()):  # memory that is written to later
        return None
    if int(torch.linalg.matrix_rank(x).min()) < x.shape[2]:
        return None
    solution = torch.linalg.lstsq(x, y).solution
    return solution.mT if is_near(x @ solution, y) else None


def find_rotation_along(evidence: Evidence, source: Source, D: int) -> Rotation | None:
    """Return the rotation of queries, or of keys, along an axis other than that of the tokens; None if there is none.

    Args:
        evidence: The runs.
        source: The queries or keys, as they are multiplied.
        D: The head size.
    """
    T = evidence.inputs.sizes[1]
    sizes = [size for size in _joined_sizes(evidence.baseline, source, D) if size > 1]
    for span in (span for size in sizes for span in _spans(evidence.baseline, source, size)):
        for axis, size in enumerate(span.before.shape[:-1]):
            if size in (1, T) or 0 in span.before.shape:
                continue
            observations = _enough_runs(evidence, _rows_at_each(size, span.before), D)
            maps = recover_maps(observations, span.before, span.after, axis)
            if maps is not None and not is_near(maps, maps[:1]):
                return _rotation(maps, span)
    return None


def _joined_sizes(observation: Observation, source: Source, D: int) -> list[int]:
    """Return the head size, and the sizes of the parts that a head is joined from."""
    steps = observation.trace.steps
    parts = {
        steps[part.step].shape[-1]
        for step in steps_from_projection(observation, source)
        if step.operation in JOINING and step.shape[-1] == D
        for part in step.inputs
        if part.step is not None and steps[part.step].shape
    }
    return [D, *sorted(parts - {D})]


def find_wrong_part(evidence: Evidence, rotation: Rotation) -> Rotation:
    """Return the rotation of the part of the features that changes norms, if parts are rotated apart and joined."""
    joined = rotation.steps[-1]
    for source in joined.inputs if joined.operation in JOINING else ():
        D = 0 if source.step is None else evidence.baseline.trace[source.step].shape[-1]
        spans = _spans(evidence.baseline, source, D) if D > 1 else []
        if not spans:
            continue
        rows = _rows_at_each(evidence.inputs.sizes[1], spans[0].before)
        part = _find_rotation(_enough_runs(evidence, rows, D), spans)
        if part is not None and not part.preserves_norms:
            return part
    return rotation


def _rows_by_position(
    observations: Sequence[Observation], step: Step, axis: int | None = None
) -> Tensor | None:
    """Return a step's rows of all runs, (T, samples, D), or those of each index of another axis."""
    rows: list[Tensor] = []
    for observation in observations:
        value, T = tensor_of(observation.trace[step.index]), observation.inputs.sizes[1]
        if value is None or value.shape != step.shape or not value.is_floating_point():
            return None
        axis = value.shape[:-1].index(T) if axis is None else axis
        rows.append(value.movedim(axis, 0).reshape(value.shape[axis], -1, value.shape[-1]).double())
    return torch.cat(rows, dim=1)


def is_near(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors are equal up to rounding."""
    return bool((a - b).abs().max() <= TOLERANCE * b.abs().max().clamp_min(TOLERANCE))
