"""Find entries of a projection that cannot change the output, because the code takes others twice in their place."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.dataflow import ancestors, is_projection, parameter_names
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.observation import Source, Step


def idle_entries(evidence: Evidence) -> Iterator[Finding]:
    """Yield findings on weights of which a product takes the diagonal alone, or some rows twice and others never."""
    yield from _diagonals(evidence)
    yield from _repeated_slices(evidence)


def _diagonals(evidence: Evidence) -> Iterator[Finding]:
    """Look for an einsum that repeats an index of a square matrix, as "dd,bd->bd" does."""
    for step in evidence.baseline.trace:
        for name in _taken_by_diagonal(step):
            parameter = _parameter(evidence, name)
            off = None if parameter is None else ~torch.eye(len(parameter), dtype=torch.bool)
            if off is not None and not _matters(evidence, name, off):
                proof = (
                    f"Adding 1 to {name} off its diagonal does not change the output: the index is repeated, so that "
                    "the product takes the diagonal alone."
                )
                yield Finding("projection-unused", "bug", proof, "", SourceLine.of(step))


def _taken_by_diagonal(step: Step) -> Iterator[str]:
    """Yield the square parameters to which an einsum gives one index twice."""
    equation = step.arguments[0] if step.operation == "einsum" and step.arguments else None
    if not isinstance(equation, str):
        return
    subscripts = equation.replace(" ", "").partition("->")[0].split(",")
    for letters, operand in zip(subscripts, step.arguments[1:], strict=False):
        repeats = len(letters) == 2 and letters[0] == letters[1]
        if repeats and isinstance(operand, Source) and operand.kind == "parameter":
            yield operand.name


def _repeated_slices(evidence: Evidence) -> Iterator[Finding]:
    """Look for the same part of a projection taken twice, while other rows of its weights have no effect."""
    steps = evidence.baseline.trace.steps
    taken: dict[tuple[object, str], Step] = {}
    for step in steps:
        source = next(iter(step.inputs), None)
        if step.operation != "getitem" or source is None or source.step is None:
            continue
        key = (source.step, repr(step.arguments[1:]))
        if key not in taken:
            taken[key] = step
            continue
        path = sorted(ancestors(steps, step))
        projection = next(
            (steps[index] for index in path[::-1] if is_projection(steps[index])), None
        )
        if projection is None or projection.operation == "embedding":  # rows of other ids are idle
            continue
        name = next(iter(parameter_names([projection])), "")
        parameter = _parameter(evidence, name)
        idle = None if parameter is None else _idle_rows(evidence, name)
        if (
            idle is not None
            and 0 < idle.sum() < len(idle)
            and not _matters(evidence, name, idle[:, None])
        ):
            rows = idle.nonzero().flatten()
            proof = (
                f"The same part of {name} is taken twice, and adding 1 to its rows {int(rows[0])} to {int(rows[-1])} "
                "does not change the output."
            )
            yield Finding("projection-unused", "bug", proof, "", SourceLine.of(step))


def _parameter(evidence: Evidence, name: str) -> nn.Parameter | None:
    """Return a matrix of the subject's module by its name; None for anything else."""
    module = evidence.subject.module
    found = {} if module is None else dict(module.named_parameters())
    parameter = found.get(name)
    return parameter if parameter is not None and parameter.dim() == 2 else None


def _idle_rows(evidence: Evidence, name: str) -> Tensor | None:
    """Return which rows of a matrix have no gradient at all, (rows,) Boolean; None if it has none anywhere."""
    subject = evidence.subject.fresh()
    assert subject.module is not None
    parameter = subject.module.get_parameter(name)
    output = subject.run(evidence.inputs)
    if not parameter.requires_grad or not output.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(output.square().sum(), parameter, allow_unused=True)
    return None if gradient is None else ~gradient.any(1)


def _matters(evidence: Evidence, name: str, entries: Tensor) -> bool:
    """Check whether the output depends on some entries of a parameter."""
    changed = evidence.subject.fresh()
    assert changed.module is not None
    with torch.no_grad():
        changed.module.get_parameter(name).add_(entries.to(evidence.subject.dtype))
    output = changed.run(evidence.inputs).detach()
    return bool(differing_entries(output, evidence.baseline.output).any())
