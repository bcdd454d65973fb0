"""The weights of tokens whose scores are no products of queries and keys: of additive attention, and of pooling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    ancestors,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.observation import Step

TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class TokenWeights:
    """A softmax over the tokens, with the steps before and after it that have one number for each weight.

    Attributes:
        softmax_step: The softmax.
        scoring: The steps from the tokens to the softmax.
        weighting: The steps from the softmax on.
        axes: The axes of the sequences and of the tokens.
        logits: The input of the softmax, (B, L, T), where L counts everything but sequences and tokens.
        weights: Its result, (B, L, T).
    """

    softmax_step: Step
    scoring: tuple[Step, ...]
    weighting: tuple[Step, ...]
    axes: tuple[int, int]
    logits: Tensor
    weights: Tensor

    def laid_out(self, step: Step) -> Tensor | None:
        """Return the value of a step as (B, L, T); None if it has other axes."""
        value = tensor_of(step)
        return None if value is None else _laid_out(value, self.softmax_step.shape, self.axes)


def find_token_weights(observation: Observation) -> list[TokenWeights]:
    """Return every softmax over the tokens of a run that belongs to no product of queries and keys, in order."""
    products = {step.index for it in find_attentions(observation) for step in it.chain}
    candidates = (step for step in observation.trace if step.operation in SOFTMAXES)
    found = (_weights(observation, it) for it in candidates if it.index not in products)
    return [weights for weights in found if weights is not None]


def _weights(observation: Observation, softmax: Step) -> TokenWeights | None:
    B, T = observation.inputs.sizes
    value, source = tensor_of(softmax), next(iter(softmax.inputs), None)
    logits = value_of(observation, source)
    if value is None or logits is None or B == T:
        return None
    tokens = [
        axis for axis, size in enumerate(value.shape) if size == T and _sums_to_1(value, axis)
    ]
    batch = [axis for axis, size in enumerate(value.shape) if size == B]
    if not tokens or not batch:
        return None
    axes = batch[0], tokens[0]
    laid_out = (_laid_out(it, value.shape, axes) for it in (logits, value))
    before, after = next(laid_out), next(laid_out)
    if before is None or after is None:
        return None
    scoring, weighting = _scoring(observation, softmax), weighting_steps(observation, softmax)
    return TokenWeights(softmax, tuple(scoring), tuple(weighting), axes, before, after)


def _sums_to_1(weights: Tensor, axis: int) -> bool:
    sums = weights.sum(axis)
    sums = sums[sums.isfinite()]
    return bool(len(sums)) and torch.allclose(sums, torch.ones_like(sums), atol=TOLERANCE)


def _laid_out(value: Tensor, shape: tuple[int, ...], axes: tuple[int, int]) -> Tensor | None:
    """Return a tensor with the axes of the weights, but for those of size 1, as (B, L, T)."""
    if [size for size in value.shape if size > 1] != [size for size in shape if size > 1]:
        return None
    return value.reshape(shape).movedim(axes, (0, -1)).reshape(shape[axes[0]], -1, shape[axes[1]])


def _scoring(observation: Observation, softmax: Step) -> Iterator[Step]:
    """Yield the steps that compute the softmax's input from the tokens and have one number for each weight."""
    steps, size = observation.trace.steps, math.prod(softmax.shape)
    from_tokens: set[int] = set()
    for step in steps[: softmax.index]:
        for source in step.inputs:
            given = source.kind == "input" and source.name in observation.inputs.arguments
            if given or source.step in from_tokens:
                from_tokens.add(step.index)
    for index in sorted(ancestors(steps, softmax) & from_tokens):
        if math.prod(steps[index].shape) == size:
            yield steps[index]


def weighting_steps(observation: Observation, softmax: Step) -> Iterator[Step]:
    """Yield the softmax and the steps after it that compute other weights from its own."""
    chain = {softmax.index}
    for step in observation.trace.steps[softmax.index :]:
        reads = any(source.step in chain for source in step.inputs)
        if step is softmax or (reads and math.prod(step.shape) == math.prod(softmax.shape)):
            chain.add(step.index)
            yield step
