"""Whether weights are a softmax over keys where no queries and keys are behind them: those of a global left over."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.dataflow import PRODUCTS, tensor
from heedful.conformance.evidence import Evidence
from heedful.conformance.finding import Fact, Finding, Place
from heedful.conformance.probing import probe
from heedful.observation import Source, Step

NEAR = 1e-4


@probe("softmax-wrong-dim")
def weighing(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Looks at softmaxes outside of any attention: where they weigh values, the sum over the keys must be 1."""
    known = {core.softmax_step for core in evidence.cores}
    for step in evidence.base.trace:
        weights = tensor(step)
        if step.operation != "softmax" or step in known or weights is None or weights.dim() < 2:
            continue
        if _sums_to_one(weights, -1) or not _weighs(evidence, step):
            continue
        axis = next((it for it in range(weights.dim() - 1) if _sums_to_one(weights, it)), None)
        if axis is not None:
            yield Finding(
                "softmax-wrong-dim",
                "bug",
                f"The weights sum to 1 along dimension {axis} of {' × '.join(map(str, weights.shape))}, "
                f"and over the last, whose entries weigh the values, to {weights.sum(-1).flatten()[0]:.3g}.",
                f"T = {evidence.inputs.sizes[1]}",
                Place.of(step),
            )
            return


def _sums_to_one(weights: Tensor, axis: int) -> bool:
    sums = weights.sum(axis)
    return weights.shape[axis] > 1 and torch.allclose(sums, torch.ones_like(sums), atol=NEAR)


def _weighs(evidence: Evidence, softmax: Step) -> bool:
    """Whether a softmax over as many keys as there are tokens is, as it is or dropped from, multiplied by something."""
    if softmax.shape[-1] != evidence.inputs.sizes[1]:
        return False
    alike = {softmax.index}
    for step in evidence.base.trace.steps[softmax.index + 1 :]:
        if not alike & {it.step for it in step.inputs}:
            continue
        if step.operation in PRODUCTS:
            first = step.arguments[0]
            return isinstance(first, Source) and first.step in alike
        if step.shape == softmax.shape:
            alike.add(step.index)
    return False
