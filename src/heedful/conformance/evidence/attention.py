"""The attention in a trace: where queries meet keys, and what becomes of the scores until they weigh the values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from heedful.conformance.evidence.axes import Product, product_of, token_letter
from heedful.conformance.recording.dataflow import PRODUCTS, is_projection, steps_from_tokens
from heedful.conformance.recording.differences import ancestors
from heedful.conformance.recording.inputs import Observation
from heedful.observation import Source, Step

FAINT = 1e-12  # a weight that leaves no trace in a float64 output
FUSED = "scaled_dot_product_attention"
TRANSPOSING = ("transpose", "mT", "T", "swapaxes", "swapdims")


@dataclass(frozen=True, eq=False)
class RecordedAttention:
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
        outside: (L, Tq), the weight on slots of a cache that hold no token; these are left out of all else.
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
        """Whether PyTorch's fused attention computes it."""
        return self.scores_step is self.context_step

    @cached_property
    def visible(self) -> Tensor:
        """(L, Tq, Tk) Boolean: which keys have a weight to speak of; NaN counts as one."""
        return ~(self.applied_weights.abs() < FAINT)


def find_attentions(observation: Observation) -> list[RecordedAttention]:
    """Every attention in a recorded run, in order.

    None is found where scores are made in other ways than by a product of two tensors.
    """
    finder = _Finder(observation)
    found: list[RecordedAttention] = []
    for step in observation.trace:
        if step.operation == FUSED:
            found.append(_fused_attention(observation, step))
        elif (product := finder.product(step)) is not None:
            found += finder.attentions_ending_in(product)
    tokens = observation.cached_tokens + observation.inputs.sizes[1]
    return [_without_slots(attention, tokens) for attention in found]


def _without_slots(attention: RecordedAttention, tokens: int) -> RecordedAttention:
    """A attention without the keys behind the last token, if these are empty slots or have no weight."""
    keys, weights = attention.key[:, tokens:], attention.applied_weights[..., tokens:]
    if (
        attention.applied_weights.shape[1] > tokens
        or not keys.numel()
        or (keys.any() and weights.any())
    ):
        return attention
    cut = {
        name: getattr(attention, name)[..., :tokens]
        for name in ("scores", "logits", "weights", "applied_weights")
    }
    rows = {name: getattr(attention, name)[:, :tokens] for name in ("key", "value")}
    return replace(
        attention, **cut, **rows, empty_slot_weight=attention.weights[..., tokens:].sum(-1)
    )


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
        self._alive = steps_from_tokens(self._steps)
        self._scores: dict[int, Product] = {}

    def product(self, step: Step) -> Product | None:
        """A step that multiplies two tensors, both made from tokens; None if it is something else."""
        if step.operation not in PRODUCTS:
            return None
        sources = [it for it in _flat(step.arguments, step.keywords) if isinstance(it, Source)]
        if step.operation in ("baddbmm", "addbmm"):
            sources = sources[1:]  # the first is added
        if len(sources) != 2 or not all(self._is_alive(source) for source in sources):
            return None
        values = [value_of(self._observation, source) for source in sources]
        operands = [(s, v) for s, v in zip(sources, values, strict=True) if v is not None]
        product = product_of(step, operands) if len(operands) == 2 else None
        if product is not None:
            self._scores[step.index] = product
        return product

    def attentions_ending_in(self, context: Product) -> Iterator[RecordedAttention]:
        """The attention whose weights a product multiplies by values, if it does."""
        for side in (0, 1):
            start = context.sources[side]
            if start.step is None:
                continue
            for index in self._scores_behind(start.step):
                attention = _attention(self._observation, self._scores[index], context, side)
                if attention is not None:
                    del self._scores[context.step.index]  # a context is nobody's scores
                    yield attention
                    return

    def _scores_behind(self, start: int) -> list[int]:
        """The products nearest before a step, with nothing trained in between."""
        found, seen, todo = [], set(), [start]
        while todo:
            index = todo.pop()
            if index in seen:
                continue
            seen.add(index)
            step = self._steps[index]
            if index in self._scores:
                found.append(index)
            elif not is_projection(step):
                todo += [it.step for it in step.inputs if it.step is not None]
        return sorted(found)

    def _is_alive(self, source: Source) -> bool:
        return source.kind == "input" or source.step in self._alive


def _flat(arguments: tuple[object, ...], keywords: object) -> Iterator[object]:
    for it in (*arguments, *(keywords.values() if isinstance(keywords, dict) else ())):
        if isinstance(it, list | tuple) and not isinstance(it, Source):
            yield from _flat(tuple(it), {})
        else:
            yield it


def _attention(
    observation: Observation, scores: Product, context: Product, side: int
) -> RecordedAttention | None:
    """Put the tensors of an attention into one layout; None where they do not fit together."""
    _, T = observation.inputs.sizes
    key_axis = context.summed[-1:]
    query_axis = token_letter(context, side, T, context.letters[side])
    value_axis = context.own(1 - side)[-1:]
    if not (key_axis and query_axis and value_axis):
        return None
    used = context.operand(side, query_axis + key_axis, value_axis)
    L, Tq, Tk = used.shape
    shape = (context.left, context.right)[side].shape
    axes = [context.letters[side].index(it) for it in (query_axis, key_axis)]

    def canonical(value: object) -> Tensor | None:
        if not isinstance(value, Tensor) or value.numel() != used.numel():
            return None
        if value.shape == shape:
            return value.movedim(axes, (-2, -1)).reshape(L, Tq, Tk)
        return value.reshape(L, Tq, Tk) if value.shape[-2:] == (Tq, Tk) else None

    chain = _chain(observation, scores.step, context.sources[side])
    queries = _side_of_queries(scores, shape, axes[0], T, chain)
    rows, columns = token_letter(scores, queries, T), token_letter(scores, 1 - queries, T)
    if not (rows and columns and scores.summed):
        return None
    query = scores.operand(queries, rows + scores.summed[-1:], columns)
    key = scores.operand(1 - queries, columns + scores.summed[-1:], rows)
    value = context.operand(1 - side, key_axis + value_axis, query_axis)
    if not len(query) == len(key) == len(value) == L:
        return None
    softmax = _softmax_step(chain)
    weights = None if softmax is None else canonical(softmax.value)
    logits = None if softmax is None else canonical(_before(observation, softmax, chain))
    plain = query @ key.mT
    return RecordedAttention(
        scores_step=scores.step,
        context_step=context.step,
        softmax_step=softmax,
        chain=chain,
        query=query,
        key=key,
        value=value,
        query_source=scores.sources[queries],
        key_source=scores.sources[1 - queries],
        value_source=context.sources[1 - side],
        scores=plain,
        logits=plain if logits is None else logits,
        weights=used if weights is None else weights,
        applied_weights=used,
        context=used @ value,
        empty_slot_weight=used.new_zeros(L, Tq),
    )


def _side_of_queries(
    scores: Product, shape: torch.Size, query_axis: int, tokens: int, chain: tuple[Step, ...]
) -> int:
    """Which operand the weights' rows belong to: keys may be multiplied by queries, and the weights transposed."""
    turns = sum(step.operation in TRANSPOSING for step in chain)
    letters = scores.letters[2]
    by_columns = scores.out.shape == shape and letters[query_axis] == token_letter(
        scores, 1, tokens
    )
    return int(by_columns != bool(turns % 2))


def _chain(observation: Observation, scores: Step, weights: Source) -> tuple[Step, ...]:
    steps = observation.trace.steps
    assert weights.step is not None
    behind = sorted(ancestors(steps, steps[weights.step]))
    found = {scores.index}
    for index in behind:
        if any(it.step in found for it in steps[index].inputs):
            found.add(index)
    return tuple(steps[index] for index in sorted(found))


def _softmax_step(chain: tuple[Step, ...]) -> Step | None:
    """The step that makes weights of scores: torch's softmax, or a division by the sum of exponentials."""
    for step in chain:
        if step.operation in ("softmax", "_safe_softmax", "_softmax", "softmin"):
            return step
    exponential = False
    for step in chain:
        exponential = exponential or step.operation in ("exp", "exp_", "exp2", "logsumexp")
        if exponential and step.operation in ("div", "div_", "truediv", "true_divide", "itruediv"):
            return step
    return None


def _before(observation: Observation, softmax: Step, chain: tuple[Step, ...]) -> object:
    """What a softmax took; of one that is written out, what the exponential took."""
    places = {step.index: step for step in chain}
    step = softmax
    while step.operation not in (
        "softmax",
        "_safe_softmax",
        "_softmax",
        "softmin",
        "exp",
        "exp_",
        "exp2",
    ):
        step = next(places[it.step] for it in step.inputs if it.step in places)
    return value_of(observation, next(it for it in step.inputs if it.step in places))


def _fused_attention(observation: Observation, step: Step) -> RecordedAttention:
    """What PyTorch's fused attention does within: the same formula, step by step."""
    given = fused_arguments(step)
    tensors = [value_of(observation, given[name]) for name in ("query", "key", "value")]
    q, k, v = (tensor for tensor in tensors if tensor is not None)
    if given["enable_gqa"]:
        k, v = (it.repeat_interleave(q.shape[-3] // it.shape[-3], dim=-3) for it in (k, v))
    Tq, D, Tk = *q.shape[-2:], k.shape[-2]
    scale = D**-0.5 if given["scale"] is None else float(str(given["scale"]))
    scores = q @ k.mT
    logits = scores * scale
    if given["is_causal"]:
        seen = torch.ones(Tq, Tk, dtype=torch.bool).tril()
        logits = logits.masked_fill(~seen, float("-inf"))
    mask = value_of(observation, given["attn_mask"])
    if mask is not None:
        logits = (
            logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask
        )
    weights = logits.softmax(-1).nan_to_num(0.0)  # a row that sees nothing is zero there

    def flat(tensor: Tensor) -> Tensor:
        return tensor.expand(*scores.shape[:-2], *tensor.shape[-2:]).reshape(-1, *tensor.shape[-2:])

    query_source, key_source, value_source = (
        it if isinstance(it, Source) else Source("constant", "")
        for it in (given["query"], given["key"], given["value"])
    )
    return RecordedAttention(
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
        applied_weights=flat(weights),
        context=flat(cast(Tensor, step.value)),
        empty_slot_weight=flat(weights).new_zeros(flat(weights).shape[:2]),
    )


def fused_arguments(step: Step) -> dict[str, object]:
    """What a step of PyTorch's fused attention was given, by name."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given: dict[str, object] = dict(
        zip(names, (None, None, None, None, 0.0, False, None, False), strict=True)
    )
    return given | dict(zip(names, step.arguments, strict=False)) | dict(step.keywords)
