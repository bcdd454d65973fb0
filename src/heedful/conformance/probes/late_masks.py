"""Probe: weights without queries and keys are masked before their softmax, or normalised again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        hiding = _hiding_step(chain, dim, from_tokens)
        if hiding is None or not _are_summed(observation, chain, hiding, dim):
            continue
        sums, count = _sums(chain, hiding, dim)
        proof = (
            f"{count} of the weights {times(softmax.shape)} are set to 0 after the softmax, so some of them sum to "
            f"{sums[(sums - 1).abs().argmax()]:.3g}, not to 1."
        )
        case = f"softmax along dimension {dim}"
        yield Finding("mask-after-softmax", "bug", proof, case, SourceLine.of(hiding))
        return


def _hiding_step(chain: Sequence[Step], dim: int, from_tokens: set[int]) -> Step | None:
    """Return the step after a softmax that sets some weights of a sum to 0, by a mask that no token decides about."""
    own = {step.index for step in chain}
    for step in chain[1:]:
        beside = [it.step for it in step.inputs if it.step not in own]
        if step.operation not in APPLYING_OPERATIONS or not from_tokens.isdisjoint(beside):
            continue
        if len(_sums(chain, step, dim)[0]):
            return step
    return None


def _sums(chain: Sequence[Step], hiding: Step, dim: int) -> tuple[Tensor, int]:
    """Return the sums over some weights that are not 1, where a step sets others to 0, and how many it sets to 0.

    There are none if a later step makes the sums 1 again.
    """
    softmax, none = chain[0], (torch.empty(0), 0)
    before, after = tensor_of(softmax), tensor_of(hiding)
    if before is None or after is None or not _have_same_axes(hiding, softmax):
        return none
    after = after.reshape(before.shape)
    hidden = (after == 0) & (before != 0)
    partly = hidden.any(dim) & (after != 0).any(dim)
    final = (tensor_of(step) for step in chain if step.index >= hiding.index)
    for value in (it for it in final if it is not None and it.numel() == before.numel()):
        sums = value.reshape(before.shape).sum(dim)[partly]
        if not len(sums) or (sums - 1).abs().le(TOLERANCE).all():
            return none
    return after.sum(dim)[partly], int(hidden.sum())


def _have_same_axes(step: Step, other: Step) -> bool:
    """Check whether two results have the same axes, but for those of one entry."""
    axes, others = ([size for size in it.shape if size > 1] for it in (step, other))
    return axes == others


def _are_summed(observation: Observation, chain: Sequence[Step], hiding: Step, dim: int) -> bool:
    """Check whether weights multiply other values, are summed with them along their own axis, and no sum divides them.

    Args:
        observation: The run.
        chain: The steps that compute weights from those of a softmax, including it.
        hiding: The step of the chain that sets weights to 0.
        dim: The dimension of the softmax.
    """
    steps = observation.trace.steps
    softmax, weights = tensor_of(chain[0]), tensor_of(hiding)
    if softmax is None or weights is None:
        return False
    sums = weights.reshape(softmax.shape).sum(dim)
    own = {step.index for step in chain if step.index >= hiding.index}
    later = steps[hiding.index + 1 :]
    if not any(_sums_weights(observation, step, own, sums) for step in later):
        return False
    divisors = (it.step for step in later if step.operation in DIVISIONS for it in step.inputs[1:])
    return not any(
        it is not None and hiding.index in ancestors(steps, steps[it]) for it in divisors
    )


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
