"""The search for attentions in a recorded run, whatever the target calls them and however it writes them.

An attention is a pair of products of two tensors that both depend on tokens. The second product reads the first one
with no projection in between. Calls of PyTorch's fused attention count, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.axes import (
    Product,
    product_of,
    token_letter,
    with_pixels_as_one,
)
from heedful.conformance.evidence.chain import chain_between, softmax_in, softmax_input
from heedful.conformance.evidence.fused import FUSED, fused_attention
from heedful.conformance.recording.dataflow import (
    PRODUCTS,
    feature_sizes,
    is_projection,
    only_selects,
    steps_from_tokens,
)
from heedful.conformance.recording.observation import Observation, value_of
from heedful.observation import Source, Step

LINEAR = "linear: keys and values are summed over the tokens first"
OVER_FEATURES = "over features: the weights compare features, not tokens"
TRANSPOSING: tuple[str, ...] = ("transpose", "mT", "T", "swapaxes", "swapdims")
REORDERING: tuple[str, ...] = ("permute", "movedim", "moveaxis", "t")
RESHAPING: tuple[str, ...] = ("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as")


def find_attentions(observation: Observation) -> list[RecordedAttention]:
    """Return every attention in a recorded run, in order.

    Attentions whose scores are not a product of two tensors are not found, nor those whose scores do not compare
    tokens: see `describe_other_designs`. Attentions without any query or key, such as those of padding where there is
    none, are left out.
    """
    finder = _Finder(observation)
    attentions: list[RecordedAttention] = []
    for step in observation.trace:
        if step.operation == FUSED:
            attentions.append(fused_attention(observation, step))
        elif (product := finder.product(step)) is not None:
            if only_selects(observation.trace.steps, step):
                finder.leave_out(product)  # it chooses tokens for an attention, as an indexer does
                continue
            attentions += finder.attentions_ending_in(product)
    tokens = observation.cached_tokens + observation.inputs.sizes[1]
    some = (it for it in attentions if it.query.numel() and it.key.numel())
    return [attention.without_empty_slots(tokens) for attention in some]


def describe_other_designs(observation: Observation) -> list[str]:
    """Describe the pairs of products that mix tokens without comparing them, since the first sums over the tokens."""
    finder = _Finder(observation)
    designs: list[str] = []
    for step in observation.trace:
        context = finder.product(step)
        if context is None:
            continue
        for side in (0, 1):
            for scores in finder.products_behind(context, side):
                if finder.sums_over_tokens(scores):
                    chain = chain_between(observation, scores.step, context.sources[side])
                    designs.append(LINEAR if softmax_in(chain) is None else OVER_FEATURES)
    return list(dict.fromkeys(designs))


def products_over_tokens(observation: Observation) -> list[Product]:
    """Return the products of two tensors that sum over the tokens and compare none, as Kᵀ V does, in order."""
    finder = _Finder(observation)
    products = (finder.product(step) for step in observation.trace)
    return [it for it in products if it is not None and finder.sums_over_tokens(it)]


class _Finder:
    """Pairs the products in a trace: queries with keys, and the resulting weights with values."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self._steps = observation.trace.steps
        self._from_tokens = steps_from_tokens(self._steps)
        self._features = feature_sizes(self._steps)
        self._scores: dict[int, Product] = {}
        self._contexts: set[int] = set()
        self._parts: set[int] = set()

    def product(self, step: Step) -> Product | None:
        """Return a step as a product of two tensors that depend on tokens; None if it is something else.

        Complex numbers have no order, so products of frequencies are no scores of a softmax. Products of no tokens are
        those of an empty sequence among packed ones.
        """
        if step.operation not in PRODUCTS:
            return None
        arguments = _flattened((*step.arguments, *step.keywords.values()))
        sources = [argument for argument in arguments if isinstance(argument, Source)]
        if step.operation in ("baddbmm", "addbmm"):
            sources = sources[1:]  # the first one is added to the product
        if len(sources) != 2 or not all(self._depends_on_tokens(source) for source in sources):
            return None
        values = [value_of(self._observation, source) for source in sources]
        operands = [
            (source, value)
            for source, value in zip(sources, values, strict=True)
            if value is not None and value.numel() and not value.is_complex()
        ]
        product = product_of(step, operands) if len(operands) == 2 else None
        if product is not None and step.operation == "einsum":
            product = with_pixels_as_one(product, self._observation.inputs.sizes[1])
        if product is not None:
            self._scores[step.index] = product
        return product

    def leave_out(self, product: Product) -> None:
        """Take a product for the scores of no attention."""
        del self._scores[product.step.index]

    def attentions_ending_in(self, context: Product) -> Iterator[RecordedAttention]:
        """Yield the attention, if any, whose weights a product multiplies by values."""
        for side in (0, 1):
            behind = self.products_behind(context, side)
            # The parts of joined scores are taken out in the order in which they were joined.
            for scores in sorted(behind, key=lambda it: it.step.index in self._parts):
                if self.sums_over_tokens(scores):
                    continue
                attention = _attention(self._observation, scores, context, side)
                if attention is not None:
                    # A context is not the scores of another attention.
                    del self._scores[context.step.index]
                    self._contexts.add(context.step.index)
                    if attention.joining_step is not None:
                        self._parts.add(scores.step.index)
                    yield attention
                    return

    def sums_over_tokens(self, product: Product) -> bool:
        """Check whether a product compares features, as Kᵀ V and scores between channels do, and sums over the tokens.

        These may be the tokens of a segment alone. An axis of as many features as there are tokens may hold either.
        """
        sizes, T = product.sizes, self._observation.inputs.sizes[1]
        compared = {sizes[letter] for side in (0, 1) for letter in product.own(side)}
        summed = {sizes[letter] for letter in product.summed}
        if T in compared:
            return False
        of_features = bool(compared) and compared <= self._features
        if T in summed and T not in self._features:
            return True
        return of_features and (T in summed or summed.isdisjoint(self._features))

    def products_behind(self, product: Product, side: int) -> list[Product]:
        """Return the nearest products that an operand of a product was computed from, with no projection between."""
        start = product.sources[side].step
        return (
            [] if start is None else [self._scores[index] for index in self._scores_behind(start)]
        )

    def _scores_behind(self, start: int) -> list[int]:
        """Return the nearest products that a step was computed from with no projection in between."""
        scores, visited, pending = [], set(), [start]
        while pending:
            index = pending.pop()
            if index in visited:
                continue
            visited.add(index)
            step = self._steps[index]
            if index in self._scores:
                scores.append(index)
            elif not is_projection(step) and index not in self._contexts:
                pending += [source.step for source in step.inputs if source.step is not None]
        return sorted(scores)

    def _depends_on_tokens(self, source: Source) -> bool:
        return source.kind == "input" or source.step in self._from_tokens


def _flattened(arguments: Iterable[object]) -> Iterator[object]:
    """Yield arguments of a call, and the items of lists and tuples among them."""
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from _flattened(argument)
        else:
            yield argument


@dataclass(frozen=True)
class _WeightsLayout:
    """The layout of the weights in the target.

    Attributes:
        shape: Their shape in the target.
        query_axis: The axis of the queries in that shape.
        key_axis: The axis of the keys in that shape.
        sizes: L, Tq and Tk.
    """

    shape: torch.Size
    query_axis: int
    key_axis: int
    sizes: torch.Size

    def rearranged(self, value: object, *, transposed: bool = False) -> Tensor | None:
        """Return a tensor of the chain from scores to weights as (L, Tq, Tk); None if it does not fit.

        Args:
            value: The tensor.
            transposed: Whether its last two axes are exchanged on the way to the weights.
        """
        if not isinstance(value, Tensor) or value.numel() != self.sizes.numel():
            return None
        L, Tq, Tk = self.sizes
        if Tq == 1 and value.shape == (L, Tk):  # without an axis for the one query
            return value.reshape(self.sizes)
        without_query = (*self.shape[: self.query_axis], *self.shape[self.query_axis + 1 :])
        if Tq == 1 and value.shape == without_query:
            value = value.unsqueeze(self.query_axis)
        elif transposed and value.dim() > 1:
            value = value.mT
        if value.shape == self.shape:
            axes = (self.query_axis, self.key_axis)
            return value.movedim(axes, (-2, -1)).reshape(self.sizes)
        last = (len(self.shape) - 2, len(self.shape) - 1)
        has_pixels = (self.query_axis, self.key_axis) == last and value.dim() > len(self.shape)
        if has_pixels and value.shape[0] == self.shape[0]:  # several axes hold the tokens
            return value.reshape(self.sizes)
        return value.reshape(self.sizes) if value.shape[-2:] == self.sizes[1:] else None


def _attention(
    observation: Observation, scores: Product, context: Product, side: int
) -> RecordedAttention | None:
    """Return the attention that two products make up; None if their tensors do not fit together.

    Args:
        observation: The run that recorded the products.
        scores: The product of queries and keys.
        context: The product of weights and values.
        side: The operand of `context` that holds the weights.
    """
    T = observation.inputs.sizes[1]
    weighted = _weights_and_values(context, side, T)
    if weighted is None:
        return None
    layout, applied, value = weighted
    chain = chain_between(observation, scores.step, context.sources[side])
    queries = _side_of_queries(scores, layout, T, chain)
    operands = _queries_and_keys(scores, queries, T)
    if operands is None:
        return None
    query, key = operands
    if not len(query) == len(key) == len(value) == len(applied):
        return None
    if applied.shape[2] > key.shape[1] + 1:
        return None  # the weights of other keys are beside these, and not of an empty slot alone
    softmax = softmax_in(chain)
    plain_scores = query @ key.mT
    weights = logits = None
    if softmax is not None:
        later = [it for it in chain if it.index > softmax.index]
        transposed = _transpositions(later) % 2 == 1
        weights, logits = (
            layout.rearranged(_in_last_shape(it, later), transposed=transposed)
            for it in (softmax.value, softmax_input(observation, softmax, chain))
        )
        if logits is None:  # a softmax of some of the sequences, beside others
            before = (layout.rearranged(it.value) for it in chain if it.index < softmax.index)
            logits = next((it for it in reversed([*before]) if it is not None), None)
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
        scores=plain_scores,
        logits=plain_scores if logits is None else logits,
        weights=applied if weights is None else weights,
        applied_weights=applied,
        context=applied @ value,
        empty_slot_weight=applied.new_zeros(applied.shape[:2]),
    )


def _weights_and_values(
    context: Product, side: int, tokens: int
) -> tuple[_WeightsLayout, Tensor, Tensor] | None:
    """Return the layout of the weights, the weights (L, Tq, Tk) and the values (L, Tk, Dv); None if axes are missing.

    Args:
        context: The product of weights and values.
        side: The operand that holds the weights.
        tokens: The number of tokens.
    """
    letters = context.letters[side]
    keys, features = context.summed[-1:], context.own(1 - side)[-1:]
    queries = token_letter(context, side, tokens, letters)
    if not (queries and keys and features) or len(context.summed) > 1:
        return None
    weights = context.operand(side, queries + keys, features, side)
    value = context.operand(1 - side, keys + features, queries, side)
    layout = _WeightsLayout(
        shape=(context.left, context.right)[side].shape,
        query_axis=letters.index(queries),
        key_axis=letters.index(keys),
        sizes=weights.shape,
    )
    return layout, weights, value


def _side_of_queries(
    scores: Product, layout: _WeightsLayout, tokens: int, chain: tuple[Step, ...]
) -> int:
    """Return which operand of the scores holds the queries.

    The order alone does not decide, since a target may multiply keys by queries and transpose the weights. The sizes
    do, if there are more queries than keys, or fewer.
    """
    sizes, Tq = scores.sizes, layout.sizes[1]
    as_many = [sizes.get(token_letter(scores, side, tokens)) == Tq for side in (0, 1)]
    if as_many.count(True) == 1:
        return as_many.index(True)
    queries_are_columns = scores.out.shape == layout.shape and (
        scores.letters[2][layout.query_axis] == token_letter(scores, 1, tokens)
    )
    return int(queries_are_columns != (_transpositions(chain) % 2 == 1))


def _in_last_shape(value: object, later: Sequence[Step]) -> object:
    """Return a tensor of the chain in the shape that later steps give it, if these only view it or keep its shape.

    They may also permute its axes, but for an exchange of the last two.
    """
    if not isinstance(value, Tensor):
        return value
    made, shape = value, tuple(value.shape)
    for step in later:
        permutes = step.operation == "permute" and not _permutes_last(step)
        if permutes and made.numel() == prod(shape) and len(shape) == len(step.shape):
            made = made.reshape(shape).permute(_axes_of_permute(step))
        elif step.operation in (*TRANSPOSING, *REORDERING) or (
            tuple(step.shape) != shape and step.operation not in RESHAPING
        ):
            return value
        shape = tuple(step.shape)
    return made.reshape(shape) if made.numel() == prod(shape) else value


def _transpositions(steps: Iterable[Step]) -> int:
    return sum(step.operation in TRANSPOSING or _permutes_last(step) for step in steps)


def _permutes_last(step: Step) -> bool:
    """Check whether a step is a permute that only exchanges the last two axes."""
    n = len(step.shape)
    return step.operation == "permute" and _axes_of_permute(step) == [*range(n - 2), n - 1, n - 2]


def _axes_of_permute(step: Step) -> list[int]:
    """Return the order into which a permute brings axes."""
    arguments = _flattened((*step.arguments, *step.keywords.values()))
    return [axis % len(step.shape) for axis in arguments if isinstance(axis, int)]


def _queries_and_keys(scores: Product, queries: int, tokens: int) -> tuple[Tensor, Tensor] | None:
    """Return the operands of the scores as (L, Tq, D) and (L, Tk, D); None if they have no such axes.

    Args:
        scores: The product of queries and keys.
        queries: The operand that holds the queries.
        tokens: The number of tokens.
    """
    rows = token_letter(scores, queries, tokens)
    columns = token_letter(scores, 1 - queries, tokens)
    if not (rows and columns) or len(scores.summed) != 1:
        return None
    features = scores.summed[-1:]
    query = scores.operand(queries, rows + features, columns)
    key = scores.operand(1 - queries, columns + features, rows)
    return query, key
