"""Probe: tensors that are broadcast against each other have their tokens on the same axis.

PyTorch aligns the last axes. Weights (B, T, 1, 1) therefore meet features (B, T, D) with B beside T. That fits one
sequence alone, or as many as tokens, and weighs all pairs of tokens in place of each token.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import MULTIPLICATIONS, steps_from_tokens
from heedful.conformance.recording.observation import value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.shapes import times


@probe("batch-mixed")
def broadcast_axes(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Look for weights with an axis too many: (T, 1, 1) beside features (T, D)."""
    run = evidence.baseline
    from_tokens = steps_from_tokens(run.trace.steps)
    for step in run.trace:
        if step.operation not in MULTIPLICATIONS or len(step.inputs) != 2:
            continue
        computed = (it for it in step.inputs if it.kind == "input" or it.step in from_tokens)
        values = [it for it in (value_of(run, source) for source in computed) if it is not None]
        if len(values) == 2 and _is_shifted(*sorted(values, key=Tensor.dim)):
            shapes = " and ".join(times(it.shape) for it in values)
            yield Finding(
                "batch-mixed",
                "bug",
                f"This product takes tensors of the shapes {shapes}. It aligns their last axes, so that the first axis "
                f"of one meets another axis of the other: the result is {times(step.shape)}.",
                ANY_CALL,
                SourceLine.of(step),
                "Give the weights as many axes as the features have.",
            )
            return


def _is_shifted(features: Tensor, weights: Tensor) -> bool:
    """Check whether weights have an axis of size 1 more than the features that they belong to."""
    return (
        weights.dim() == features.dim() + 1 > 2
        and weights.shape[-2:] == (1, 1)
        and weights.shape[:-2] == features.shape[:-1]
        and features.shape[:-1].numel() > 1
    )
