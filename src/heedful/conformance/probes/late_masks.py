"""Probe: weights without queries and keys are masked before their softmax, or normalised again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.evidence.axes import product_of
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import APPLYING_OPERATIONS
from heedful.conformance.evidence.token_weights import weighting_steps
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.softmax import softmax_dimension
from heedful.conformance.probes.vector_weights import weighted_sum
from heedful.conformance.recording.dataflow import (
    DIVISIONS,
    PRODUCTS,
    ancestors,
    steps_from_tokens,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step
from heedful.shapes import times

TOLERANCE = 1e-4


class _Hiding(NamedTuple):
    """A step that sets some weights of a softmax to 0.

    Attributes:
        step: The step.
        sums: The sums of all weights along the dimension of the softmax, after the step.
        partial: Those of which the step has left some weights, and set others to 0.
        hidden: The number of weights that it sets to 0.
    """

    step: Step
    sums: Tensor
    partial: Tensor
    hidden: int


@probe("mask-after-softmax")
def late_masks(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Sum weights that a mask sets to 0 after a softmax without queries: where some are left, the sum must be 1.

    A mask that is computed from the tokens is a gate or a choice, and one that hides whole rows hides queries.
    """
    observation = evidence.baseline
    known = {step.index for it in evidence.attentions for step in it.chain}
    from_tokens = steps_from_tokens(observation.trace.steps)
    for softmax in observation.trace:
        dim = softmax_dimension(softmax)
        if dim is None or softmax.index in known:
            continue
        chain = list(weighting_steps(observation, softmax))
        hiding = _find_hiding(chain, dim, from_tokens)
        if hiding is None or not _are_summed(observation, chain, hiding):
            continue
        worst = hiding.partial[(hiding.partial - 1).abs().argmax()]
        proof = (
            f"{hiding.hidden} of the weights {times(softmax.shape)} are set to 0 after the softmax, so some of them "
            f"sum to {worst:.3g}, not to 1."
        )
        case, place = f"softmax along dimension {dim}", SourceLine.of(hiding.step)
        yield Finding("mask-after-softmax", "bug", proof, case, place)
        return


def _find_hiding(chain: Sequence[Step], dim: int, from_tokens: set[int]) -> _Hiding | None:
    """Return the step after a softmax that sets some weights of a sum to 0, by a mask that no token decides about."""
    own, before = {step.index for step in chain}, tensor_of(chain[0])
    for step in chain[1:]:
        beside, after = [it.step for it in step.inputs if it.step not in own], tensor_of(step)
        by_tokens = not from_tokens.isdisjoint(beside)
        if step.operation not in APPLYING_OPERATIONS or by_tokens:
            continue
        if before is None or after is None or not _have_same_axes(step, chain[0]):
            continue
        after = after.reshape(before.shape)
        hidden, sums = (after == 0) & (before != 0), after.sum(dim)
        partial = sums[hidden.any(dim) & (after != 0).any(dim)]
        if (partial - 1).abs().gt(TOLERANCE).any():
            return _Hiding(step, sums, partial, int(hidden.sum()))
    return None


def _have_same_axes(step: Step, other: Step) -> bool:
    """Check whether two results have the same axes, but for those of one entry."""
    axes, others = ([size for size in it.shape if size > 1] for it in (step, other))
    return axes == others


def _are_summed(observation: Observation, chain: Sequence[Step], hiding: _Hiding) -> bool:
    """Check whether weights multiply other values, are summed with them along their own axis, and no sum divides them.

    They still have the sums that the hiding step left: no step in between has normalised them again.
    """
    steps, start = observation.trace.steps, hiding.step.index
    own = {step.index for step in chain if step.index >= start}
    later = steps[start + 1 :]
    if not any(_sums_weights(observation, step, own, hiding.sums) for step in later):
        return False
    divisors = (it.step for step in later if step.operation in DIVISIONS for it in step.inputs[1:])
    return not any(it is not None and start in ancestors(steps, steps[it]) for it in divisors)


def _sums_weights(observation: Observation, step: Step, own: set[int], sums: Tensor) -> bool:
    """Check whether a step sums weights times other values along the axis along which the weights have some sums."""
    weighted = weighted_sum(observation, step)
    if weighted is not None:
        values = [value_of(observation, it) for it in weighted.factors]
        rank = max((it.dim() for it in values if it is not None), default=0)
        return any(
            factor.step in own and value is not None and _are_same(value.sum(axis - rank), sums)
            for factor, value in zip(weighted.factors, values, strict=True)
            for axis in weighted.axes
        )
    operands = [
        (it, value) for it in step.inputs if (value := value_of(observation, it)) is not None
    ]
    is_product = step.operation in PRODUCTS and len(operands) == 2
    product = product_of(step, operands) if is_product else None
    if product is None:
        return False
    sides = zip(product.sources, (product.left, product.right), product.letters, strict=True)
    return any(
        source.step in own and _are_same(operand.sum(letters.index(letter)), sums)
        for source, operand, letters in sides
        for letter in product.summed
    )


def _are_same(one: Tensor, other: Tensor) -> bool:
    """Check whether two tensors have the same entries, in any order of their axes."""
    if one.numel() != other.numel():
        return False
    entries, others = (it.flatten().sort().values for it in (one, other))
    return torch.allclose(entries, others, atol=TOLERANCE)
