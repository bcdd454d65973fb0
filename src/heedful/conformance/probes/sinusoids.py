"""Probe: the sine and the cosine of a pair in a table of positions have the same frequency (Vaswani et al. 2017)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.source import SourceLine, nodes_of, parsed
from heedful.conformance.recording.target_source import functions_of, with_functions_called
from heedful.conformance.reporting.finding import ANY_CALL, Finding

ROUNDING = 1e-3
"""The largest error of sin² + cos² in a table of float32, whose angles are large in its last rows."""

ROWS = 64
"""The number of rows that are compared, beginning with that of position 0."""


@probe("positions-wrong")
def sinusoids(evidence: Evidence) -> Iterator[Finding]:
    """Search for a table of sines and cosines in which the squares of a pair do not sum to 1."""
    return sinusoids_in(evidence.subject.target.module)


def sinusoids_in(module: nn.Module | None) -> Iterator[Finding]:
    """Yield the finding on the first table of a module whose pairs have two frequencies."""
    for name, table in () if module is None else _tables(module):
        pairs = _pairs(table[:ROWS].double())
        if pairs is None:
            continue
        wrong = (pairs.square().sum(-1) - 1).abs() > ROUNDING
        if wrong.any():
            position, pair = wrong.nonzero()[0].tolist()
            sine, cosine = pairs[position, pair].tolist()
            yield Finding(
                "positions-wrong",
                "bug",
                f"{name} is a table of sines and cosines. At position {position} the sine of pair {pair} is {sine:.3g} "
                f"and its cosine {cosine:.3g}, whose squares sum to {sine**2 + cosine**2:.3g} and not to 1: their "
                "frequencies differ, so that no rotation turns the row of one position into that of another.",
                ANY_CALL,
                _line_of_cosine(module) or attribute_definition(module, name),
                "Give the sine and the cosine of a pair the same exponent, 2i / d_model.",
            )
            return


def _tables(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices that a module and its parts hold, (positions, features), by dotted name."""
    for path, part in module.named_modules():
        held = {**vars(part), **part._buffers, **part._parameters}
        for name, value in held.items():
            if not isinstance(value, Tensor) or is_lazy(value) or value.is_meta:
                continue
            if value.is_floating_point():
                table = value.detach().squeeze()
                if table.dim() == 2 and len(table) > 2 and table.shape[1] > 2:
                    yield f"{path}.{name}".strip("."), table


def _pairs(table: Tensor) -> Tensor | None:
    """Return the sines and cosines of a table, (positions, pairs, 2); None if it is none of these.

    At position 0 every sine is 0 and every cosine 1. They alternate, or all sines come before all cosines.
    """
    if table.shape[1] % 2 or table.abs().max() > 1 or not table.isfinite().all():
        return None
    alternating, halves = table.unflatten(1, (-1, 2)), table.unflatten(1, (2, -1)).mT
    for pairs in (alternating, halves):
        if torch.equal(pairs[0], torch.tensor([0.0, 1.0], dtype=pairs.dtype).expand_as(pairs[0])):
            return pairs
    return None


def _line_of_cosine(module: nn.Module | None) -> SourceLine | None:
    """Return the line that computes the angle of a cosine, or the cosine itself; None if no code of the module does."""
    for function in with_functions_called(functions_of(module) if module is not None else ()):
        source = parsed(function)
        angles = {
            ast.unparse(node.args[0])
            for node in nodes_of(function)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("cos") and node.args
        }
        for statement in () if source is None else source.statements():
            if source is not None and isinstance(statement, ast.Assign):
                of_angle = ast.unparse(statement.targets[0]) in angles
                if of_angle or any(f"cos({it})" in ast.unparse(statement) for it in angles):
                    return source.line_of(statement)
    return None
