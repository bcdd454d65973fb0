"""Whether the tables of angles that a call gives are rotations at all."""

from __future__ import annotations

from itertools import combinations_with_replacement

import torch
from torch import Tensor

from heedful.conformance.recording.observation import Observation

TOLERANCE = 1e-2  # tables may be rounded
ANGULAR = frozenset({"cos", "sin", "polar", "exp"})


def is_no_rotation(observation: Observation) -> bool:
    """Check whether a call gives tables with a row for each token, none of which are cosines and sines or angles."""
    T = observation.inputs.sizes[1]
    tables = [
        tensor
        for (kind, name), tensor in observation.values.items()
        if kind == "input" and name.partition("[")[0] not in observation.inputs.arguments
        if (tensor.is_floating_point() or tensor.is_complex()) and T in tensor.shape[:-1]
    ]
    if not tables or any(step.operation in ANGULAR for step in observation.trace):
        return False
    return not any(_is_circle(it) for it in _pairs(tables))


def _pairs(tables: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return what may be cosines and sines: the parts of complex numbers, two tables, or two parts of one."""
    complex_tables = [(it.real, it.imag) for it in tables if it.is_complex()]
    real = [it for it in tables if not it.is_complex()]
    parts = [it.chunk(2, -1) for it in real if it.shape[-1] % 2 == 0]
    parts += [it.unbind(-1) for it in real if it.shape[-1] == 2]
    parts += [it.unbind(0) for it in real if it.shape[0] == 2]
    neighbors = [it.unflatten(-1, (-1, 2)).unbind(-1) for it in real if it.shape[-1] % 2 == 0]
    two = [it for it in combinations_with_replacement(real, 2) if it[0].shape == it[1].shape]
    return [*complex_tables, *((a, b) for a, b in (*parts, *neighbors, *two))]


def _is_circle(pair: tuple[Tensor, Tensor]) -> bool:
    """Check whether the squares of all cosines and sines add up to 1, or to another number that all share."""
    squares = pair[0].double().square() + pair[1].double().square()
    return bool(squares.max() > 0) and torch.allclose(
        squares, squares.max().expand_as(squares), rtol=TOLERANCE
    )
