"""Probe: the residual connections of a block add its input, and not what a norm has made of it."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import (
    NORMS,
    ancestors,
    behind_views,
    is_layer,
    operands_of,
)
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step


@probe("context-wrong")
def normed_residual(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compare the residual connections of a block: if one adds what its sublayer's norm is given, they all should.

    Only the norm reads the block's input then, which is lost to all that follows.
    """
    steps = evidence.baseline.trace.steps
    sums = [it for step in steps if (it := _residual_sum(steps, step)) is not None]
    for step, norm in ((step, norm) for step, norm in sums if norm is not None):
        others = [other for other, normed in sums if normed is None and other.module == step.module]
        if others and _is_read_once(steps, behind_views(steps, norm.inputs[0])):
            yield Finding(
                "context-wrong",
                "bug",
                f"This residual connection adds the output of a norm, and that of {others[0].source.strip()!r} adds "
                "what its norm is given: the block's input is lost.",
                "",
                SourceLine.of(step),
                "Keep the input before the norm, and add that: residual = x; x = residual + attention(norm(x)).",
            )
            return


def _residual_sum(steps: tuple[Step, ...], step: Step) -> tuple[Step, Step | None] | None:
    """Return a sum of a tensor and what layers make of it, with the norm that made the tensor.

    The norm is None if it is the first of those layers. The result is None if a step is no such sum.
    """
    operands = operands_of(step)
    if step.operation not in ADDITIONS or len(operands) != 2:
        return None
    for kept, made in (operands, operands[::-1]):
        residual = behind_views(steps, kept)
        behind = [] if made.step is None else [*ancestors(steps, steps[made.step])]
        layers = [steps[it] for it in behind if residual.step is None or it > residual.step]
        if not any(map(is_layer, layers)):
            continue
        for norm in (it for it in layers if it.operation in NORMS):
            if behind_views(steps, norm.inputs[0]) == residual:
                return step, None
        own = None if residual.step is None else steps[residual.step]
        if own is not None and own.operation in NORMS and own.index in behind:
            return step, own
    return None


def _is_read_once(steps: tuple[Step, ...], source: Source) -> bool:
    """Check whether one step alone reads a tensor, or a view of it."""
    read = (behind_views(steps, it) == source for step in steps for it in step.inputs)
    return sum(read) == 1
