"""An attention that was found in a recorded run, its tensors in one layout for all targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from heedful.conformance.recording.dataflow import JOINING
from heedful.observation import Source, Step

FAINT = 1e-12
"""Weights below this leave no trace in a float64 output."""
SMALLEST_FILL = 1e3
"""A score this far below the others is masked, and not only small."""


@dataclass(frozen=True, eq=False)
class RecordedAttention:
    """One attention in a recorded run: of all heads, or of one head if the target computes each separately.

    L counts batch entries and heads together, in the order in which the target holds them.

    Attributes:
        scores_step: The product of queries and keys.
        context_step: The product of weights and values; the same step as `scores_step` if PyTorch's fused attention
            computes both.
        softmax_step: The step that normalises the scores; None if there is none.
        chain: The steps from the scores to the weights that multiply the values, including both.
        query: The queries, (L, Tq, D), as multiplied.
        key: The keys, (L, Tk, D), as multiplied.
        value: The values, (L, Tk, Dv), as multiplied.
        query_source: The source of the queries.
        key_source: The source of the keys.
        value_source: The source of the values.
        scores: The products of queries and keys, (L, Tq, Tk), unscaled and unmasked.
        logits: The input of the softmax, (L, Tq, Tk).
        weights: The output of the softmax, (L, Tq, Tk).
        applied_weights: The weights that multiply the values, (L, Tq, Tk), for example after dropout.
        context: The products of weights and values, (L, Tq, Dv).
        empty_slot_weight: The weight, (L, Tq), on slots of a cache that hold no token. All other tensors leave these
            slots out.
    """

    scores_step: Step
    context_step: Step
    softmax_step: Step | None
    chain: tuple[Step, ...]
    query: Tensor
    key: Tensor
    value: Tensor
    query_source: Source
    key_source: Source
    value_source: Source
    scores: Tensor
    logits: Tensor
    weights: Tensor
    applied_weights: Tensor
    context: Tensor
    empty_slot_weight: Tensor

    @property
    def fused(self) -> bool:
        """True if PyTorch's fused attention computes it."""
        return self.scores_step is self.context_step

    @cached_property
    def visible(self) -> Tensor:
        """(L, Tq, Tk) Boolean, True where a key has a weight above `FAINT`, or NaN."""
        return ~(self.applied_weights.abs() < FAINT)

    @cached_property
    def joining_step(self) -> Step | None:
        """The step that joins the scores to those of other products before a softmax of all; None if none does.

        The weights are then a part of what the softmax returns, and only the parts together sum to 1.
        """
        softmax = self.softmax_step
        if softmax is None or self.fused:
            return None
        own = {step.index for step in self.chain}
        for step in self.chain:
            beside = [it for it in step.inputs if it.step is not None and it.step not in own]
            if step.operation in JOINING and step.index < softmax.index and beside:
                parts = math.prod(softmax.shape) > self.applied_weights.numel()
                return step if parts else None
        return None

    def without_empty_slots(self, tokens: int) -> RecordedAttention:
        """Return the attention without the keys after the last token, if these are empty cache slots.

        Args:
            tokens: The number of tokens so far, including those in the cache.
        """
        keys, weights = self.key[:, tokens:], self.applied_weights[..., tokens:]
        more_queries_than_tokens = self.applied_weights.shape[1] > tokens
        slots_are_used = bool(keys.any() and weights.any())
        if more_queries_than_tokens or not keys.numel() or slots_are_used:
            return self
        return replace(
            self,
            key=self.key[:, :tokens],
            value=self.value[:, :tokens],
            scores=self.scores[..., :tokens],
            logits=self.logits[..., :tokens],
            weights=self.weights[..., :tokens],
            applied_weights=self.applied_weights[..., :tokens],
            empty_slot_weight=self.weights[..., tokens:].sum(-1),
        )
