"""Whether weights are a softmax over keys where no queries and keys are behind them: those of a global left over."""

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

NEAR = 1e-4


@probe("softmax-wrong-dim")
def weighing(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Looks at softmaxes outside of any attention: where they weigh values, the sum over the keys must be 1."""
    known = {attention.softmax_step for attention in evidence.attentions}
    for step in evidence.baseline.trace:
        weights = tensor_of(step)
        if step.operation != "softmax" or step in known or weights is None or weights.dim() < 2:
            continue
        if not _weighs(evidence, step):
            continue
        proof = _wrong(weights) or _wrong_for_own_scores(evidence, step, weights)
        if proof:
            case = f"T = {evidence.inputs.sizes[1]}"
            yield Finding("softmax-wrong-dim", "bug", proof, case, SourceLine.of(step))
            return


def _wrong(weights: Tensor) -> str:
    axes = [axis for axis in range(weights.dim()) if _sums_to_one(weights, axis)]
    if not axes or weights.dim() - 1 in axes:
        return ""
    return (
        f"The weights sum to 1 along dimension {axes[0]} of {times(weights.shape)}, and over the last, whose entries "
        f"weigh the values, to {_first_sum(weights):.3g}."
    )


def _wrong_for_own_scores(evidence: Evidence, softmax: Step, weights: Tensor) -> str:
    """What is wrong of a softmax that is right for a global's scores alone, which have fewer dimensions."""
    alive = steps_from_tokens(evidence.baseline.trace.steps)
    dim, T = _dimension(softmax), evidence.inputs.sizes[1]
    if softmax.index in alive or dim is None or dim < 0:
        return ""
    for step in evidence.baseline.trace.steps[: softmax.index]:
        scores = tensor_of(step)
        if step.index not in alive or step.operation not in PRODUCTS or scores is None:
            continue
        if scores.shape[-2:] == (T, T) and dim < scores.dim() - 1:
            return (
                f"Dimension {dim} is the keys' in {times(weights.shape)}, a global's, but not in {step.name!r} "
                f"({times(scores.shape)}): of these a query's weights sum to {_first_sum(scores.softmax(dim)):.3g}."
            )
    return ""


def _dimension(softmax: Step) -> int | None:
    dim = softmax.keywords.get("dim", softmax.arguments[1] if len(softmax.arguments) > 1 else None)
    return dim if isinstance(dim, int) else None


def _first_sum(weights: Tensor) -> float:
    return weights.sum(-1).flatten()[0].item()


def _sums_to_one(weights: Tensor, axis: int) -> bool:
    sums = weights.sum(axis)
    return weights.shape[axis] > 1 and torch.allclose(sums, torch.ones_like(sums), atol=NEAR)


def _weighs(evidence: Evidence, softmax: Step) -> bool:
    """Whether a softmax over as many keys as there are tokens is, as it is or dropped from, multiplied by something."""
    if softmax.shape[-1] != evidence.inputs.sizes[1]:
        return False
    alike = {softmax.index}
    for step in evidence.baseline.trace.steps[softmax.index + 1 :]:
        if not alike & {it.step for it in step.inputs}:
            continue
        if step.operation in PRODUCTS:
            first = step.arguments[0]
            return isinstance(first, Source) and first.step in alike
        if step.shape == softmax.shape:
            alike.add(step.index)
    return False
