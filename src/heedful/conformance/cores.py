"""The attention in a trace: where queries meet keys, and what becomes of the scores until they weigh the values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heedful.conformance.axes import Product, product_of, token_letter
from heedful.conformance.changes import ancestors
from heedful.conformance.dataflow import PRODUCTS, is_projection, made_from_tokens
from heedful.conformance.subject import Observation
from heedful.observation import Source, Step

FUSED = "scaled_dot_product_attention"


@dataclass(frozen=True, eq=False)
class Core:
    """One attention: of all heads, or of one if they are computed apart.

    L counts batch entries and heads together, in the order in which the target holds them; all tensors are in this one
    layout, whatever the target's own.

    Attributes:
        scores_step, context_step: the products of queries and keys, and of weights and values; the same one step where
            PyTorch's fused attention does both.
        softmax_step: None if no softmax was seen.
        chain: the steps from the scores to the weights as used, both ends included.
        query, key, value: (L, Tq, D), (L, Tk, D), (L, Tk, Dv), as multiplied.
        query_source, key_source, value_source: where they came from.
        scores: (L, Tq, Tk), queries times keys, nothing done to them.
        logits: (L, Tq, Tk), what the softmax took.
        weights: (L, Tq, Tk), what it gave.
        used: (L, Tq, Tk), what the values were multiplied by.
        context: (L, Tq, Dv).
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
    used: Tensor
    context: Tensor

    @property
    def fused(self) -> bool:
        """Whether PyTorch's fused attention computes it."""
        return self.scores_step is self.context_step

    @cached_property
    def visible(self) -> Tensor:
        """(L, Tq, Tk) Boolean: which keys have a weight; NaN counts as one."""
        return self.used != 0


def find_cores(observation: Observation) -> list[Core]:
    """Every attention in a recorded run, in order.

    None is found where scores are made in other ways than by a product of two tensors.
    """
    finder = _Finder(observation)
    found: list[Core] = []
    for step in observation.trace:
        if step.operation == FUSED:
            found.append(_fused_core(observation, step))
        elif (product := finder.product(step)) is not None:
            found += finder.cores_ending_in(product)
    return found


def value_of(observation: Observation, source: object) -> Tensor | None:
    """The tensor that a source stands for; None if it was not kept."""
    if not isinstance(source, Source):
        return None
    if source.step is not None:
        value = observation.trace[source.step].value
        return value if isinstance(value, Tensor) else None
    return observation.values.get((source.kind, source.name))


class _Finder:
    """Looks a trace through for pairs of products: of queries and keys, and of what came of that and values."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self._steps = observation.trace.steps
        self._alive = made_from_tokens(self._steps)
        self._scores: dict[int, Product] = {}

    def product(self, step: Step) -> Product | None:
        """A step that multiplies two tensors, both made from tokens; None if it is something else."""
        if step.operation not in PRODUCTS:
            return None
        query_source, key_source, value_source = (
            it if isinstance(it, Source) else Source("constant", "")
            for it in (given["query"], given["key"], given["value"])
        )

    return Core(
        scores_step=step,
        context_step=step,
        softmax_step=step,
        chain=(step,),
        query=flat(q),
        key=flat(k),
        value=flat(v),
        query_source=query_source,
        key_source=key_source,
        value_source=value_source,
        scores=flat(scores),
        logits=flat(logits),
        weights=flat(weights),
        used=flat(weights),
        context=flat(weights @ v),
    )


def fused_arguments(step: Step) -> dict[str, object]:
    """What a step of PyTorch's fused attention was given, by name."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given: dict[str, object] = dict(
        zip(names, (None, None, None, None, 0.0, False, None, False), strict=True)
    )
    return given | dict(zip(names, step.arguments, strict=False)) | dict(step.keywords)
