"""Probe: weights that come from a global tensor, not from queries and keys, are a softmax over the keys, too."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import PRODUCTS, steps_from_tokens
from heedful.conformance.recording.observation import tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times

TOLERANCE = 1e-4


@probe("softmax-wrong-dim")
def global_weights(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Find softmaxes outside of any attention, and check that those that weight values sum to 1 over the keys."""
    known = {attention.softmax_step for attention in evidence.attentions}
    for step in evidence.baseline.trace:
        weights = tensor_of(step)
        if step.operation != "softmax" or step in known or weights is None or weights.dim() < 2:
            continue
        applied = _weighting_values(evidence, step)
        if applied is None:
            continue
        wrong_sums = "" if _sums_to_one(applied, -1) else _proof_of_wrong_sums(weights)
        proof = wrong_sums or _proof_for_own_scores(evidence, step, weights)
        if proof:
            case = f"T = {evidence.inputs.sizes[1]}"
            yield Finding("softmax-wrong-dim", "bug", proof, case, SourceLine.of(step))
            return


def _weighting_values(evidence: Evidence, softmax: Step) -> Tensor | None:
    """Return what a softmax over T keys becomes as the first factor of a product, transposed or masked perhaps."""
    if softmax.shape[-1] != evidence.inputs.sizes[1]:
        return None
    weights, steps = {softmax.index}, evidence.baseline.trace.steps
    for step in steps[softmax.index + 1 :]:
        if not any(source.step in weights for source in step.inputs):
            continue
        if step.operation in PRODUCTS:
            first = step.arguments[0]
            used = first.step if isinstance(first, Source) else None
            return tensor_of(steps[used]) if used in weights and used is not None else None
        if step.shape == softmax.shape:
            weights.add(step.index)
    return None


def _proof_of_wrong_sums(weights: Tensor) -> str:
    """Describe along which dimension weights sum to 1, if that is not the last one; otherwise return ""."""
    dims = [dim for dim in range(weights.dim()) if _sums_to_one(weights, dim)]
    if not dims or weights.dim() - 1 in dims:
        return ""
    return (
        f"The weights sum to 1 along dimension {dims[0]} of {times(weights.shape)}, not along the last, which is the "
        f"keys': there, the first query's weights sum to {_first_sum(weights):.3g}."
    )


def _proof_for_own_scores(evidence: Evidence, softmax: Step, weights: Tensor) -> str:
    """Describe a dimension that fits the scores in a global tensor, but not the target's own, which have more.

    Return "" if there is none.
    """
    from_tokens = steps_from_tokens(evidence.baseline.trace.steps)
    dim, T = _dimension(softmax), evidence.inputs.sizes[1]
    if softmax.index in from_tokens or dim is None or dim < 0:
        return ""
    for step in evidence.baseline.trace.steps[: softmax.index]:
        scores = tensor_of(step)
        if step.index not in from_tokens or step.operation not in PRODUCTS or scores is None:
            continue
        if scores.shape[-2:] == (T, T) and dim < scores.dim() - 1:
            return (
                f"Dimension {dim} is that of the keys in a global tensor ({times(weights.shape)}), but not in "
                f"{step.name!r} ({times(scores.shape)}): with these scores, the first query's weights sum to "
                f"{_first_sum(scores.softmax(dim)):.3g}."
            )
    return ""


def _dimension(softmax: Step) -> int | None:
    """Return the argument `dim` of a softmax."""
    positional = softmax.arguments[1] if len(softmax.arguments) > 1 else None
    dim = softmax.keywords.get("dim", positional)
    return dim if isinstance(dim, int) else None


def _sums_to_one(weights: Tensor, dim: int) -> bool:
    sums = weights.sum(dim)
    return weights.shape[dim] > 1 and torch.allclose(sums, torch.ones_like(sums), atol=TOLERANCE)


def _first_sum(weights: Tensor) -> float:
    """Return the sum of the first query's weights."""
    return weights.sum(-1).flatten()[0].item()
