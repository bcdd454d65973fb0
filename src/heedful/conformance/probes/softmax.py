"""Probe: each query's weights are positive and sum to 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import describe_other_designs
from heedful.conformance.evidence.designs import (
    describe_weights,
    has_late_temperature,
    is_normalized_again,
    keeps_one_unshifted,
)
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.projection_names import own_name, role_of
from heedful.conformance.recording.dataflow import (
    DIVISIONS,
    EXPONENTIALS,
    MULTIPLICATIONS,
    PRODUCTS,
    SOFTMAXES,
    ancestors,
    is_discrete,
    parameter_names,
    steps_from_projection,
)
from heedful.conformance.recording.definitions import layer_definition
from heedful.conformance.recording.differences import TOLERANCES
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.observation import Step
from heedful.shapes import times

TOLERANCE = 1e-4
# What code says in words if the queries compete for the keys.
SLOT_ATTENTION: tuple[str, ...] = ("slot attention", "slotattention", "slot softmax")
NYSTROM: tuple[str, ...] = ("nystrom", "nyström")
MERGING: tuple[str, ...] = ("flatten", "reshape", "view")


@probe("softmax-wrong-dim", "rows-not-normalised", "mask-after-softmax")
def softmax(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Sum each query's weights over the keys, and check that the sum is 1 where any key is visible."""
    designs = describe_other_designs(evidence.baseline)
    yield from (Fact("attention", design) for design in designs)
    if not (evidence.attentions or designs) and not any(
        "attention" in step.operation for step in evidence.baseline.trace
    ):
        yield Fact("attention", "not recognised inside; only outputs are checked")
    for attention in evidence.attentions:
        if _is_normalised_later(evidence.baseline, attention):
            continue
        finding = _wrong_softmax(evidence, attention) or _changed_after_softmax(attention)
        design = "" if finding is None else _design(evidence, attention, finding)
        if design:
            yield Fact("weights", design)
        elif finding is not None and has_late_temperature(evidence, attention):
            yield replace(finding, case=ANY_CALL)
            return
        elif finding is not None:
            yield finding
            return
    yield from _pooled_wrongly(evidence)
    if not evidence.attentions:
        yield from _over_heads(evidence)


def _pooled_wrongly(evidence: Evidence) -> Iterator[Finding]:
    """Report a softmax without queries that is over the sequences of a batch, the heads, or one entry."""
    (B, T), convention = evidence.inputs.sizes, evidence.subject.convention
    heads = evidence.expected.num_heads
    edges = T * T if any("edge_index" in name for name in convention.constants) else None
    pooled = convention.pooled
    of_images = pooled and convention.is_image  # whose layers change the number of pixels
    known = [it.softmax_step for it in evidence.attentions]
    for step in evidence.baseline.trace:
        dim = softmax_dimension(step)
        if dim is None or B == T or step in known:
            continue
        size, others = step.shape[dim], (*step.shape[1:dim], *step.shape[dim + 1 :])
        of_tokens = T in step.shape or (of_images and max(others, default=1) > 1)
        over_sequences = size == B > 1 and step.shape.index(B) == dim and (of_tokens or pooled)
        over_one = size == 1 and of_tokens and (pooled or _sums_tokens(evidence, step))
        over_heads = size == heads != 1 and T in others and _sums_tokens(evidence, step, heads)
        over_heads |= size == heads != 1 and step.shape[:dim] == (edges,)
        if over_sequences:
            entries = "the sequences of the batch"
        elif over_heads:
            entries = "the heads"
        elif over_one:
            entries = "one entry, so that each is 1"
        else:
            continue
        yield Finding(
            "softmax-wrong-dim",
            "bug",
            f"The weights {times(step.shape)} sum to 1 along dimension {dim}, over {entries}, not over the tokens.",
            f"B = {B}, T = {T}",
            _line(evidence, step),
            f"Take the dimension of the tokens: dim={step.shape.index(T)}."
            if T in step.shape
            else "",
        )
        return


def _sums_tokens(evidence: Evidence, weights: Step, heads: int | None = None) -> bool:
    """Check whether weights, or their products, are summed over the tokens, in each head if there are heads."""
    steps, T = evidence.baseline.trace.steps, evidence.inputs.sizes[1]
    reached = {weights.index}
    for step in steps[weights.index + 1 :]:
        if not any(source.step in reached for source in step.inputs):
            continue
        in_each = heads is None or heads in step.shape
        if T not in step.shape and in_each and step.operation in ("sum", *PRODUCTS):
            return True
        reached.add(step.index)
    return False


def _over_heads(evidence: Evidence) -> Iterator[Finding]:
    """Report a softmax of products over the keys of all heads at once, in a target that only returns its weights."""
    steps, heads = evidence.baseline.trace.steps, evidence.expected.num_heads
    for step in steps:
        dim = softmax_dimension(step)
        flat = next((source.step for source in step.inputs), None)
        if (
            dim is None
            or flat is None
            or heads in (None, 1)
            or steps[flat].operation not in MERGING
        ):
            continue
        before = {index for it in steps[flat].inputs if (index := it.step) is not None}
        for index in before:
            products = ancestors(steps, steps[index]) | {index}
            shape = steps[index].shape
            of_products = any(
                steps[it].operation in PRODUCTS and steps[it].shape == shape for it in products
            )
            merged = shape[dim : len(shape) - len(step.shape[dim + 1 :])]
            if of_products and heads in merged[:-1] and math.prod(merged) == step.shape[dim]:
                yield Finding(
                    "softmax-wrong-dim",
                    "bug",
                    f"The weights sum to 1 over {times(merged)} entries, the keys of all {heads} heads together.",
                    f"scores {times(shape)}",
                    _line(evidence, step),
                )
                return


def softmax_dimension(step: Step) -> int | None:
    """Return the dimension of a softmax, counted from the first one; None for another step."""
    if step.operation not in SOFTMAXES or step.unused or not step.shape:
        return None
    dim = step.keywords.get("dim", step.arguments[1] if len(step.arguments) > 1 else None)
    return dim % len(step.shape) if isinstance(dim, int) else None


def _design(evidence: Evidence, attention: RecordedAttention, finding: Finding) -> str:
    """Describe the design that makes up for a finding; return "" if there is none."""
    weights, applied = attention.weights, attention.applied_weights
    if not _is_normalised(weights) and is_normalized_again(weights, applied):
        return "divided by their sums after a softmax over another dimension"
    if is_discrete(evidence.baseline.trace.steps, attention.chain):
        return "chosen: each key is given to the query of its largest score"
    prose = prose_about(evidence.subject.target.callee)
    if _are_ones(weights.sum(-2)) and any(words in prose for words in SLOT_ATTENTION):
        return "normalised over the queries, as in slot attention"
    if any(words in prose for words in NYSTROM):
        return "a product of several softmaxes, as in Nyström attention"
    if finding.name != "rows-not-normalised":
        return ""
    if attention.softmax_step is None and torch.allclose(
        applied * applied.shape[-1], attention.scores
    ):
        return "divided by the number of keys, as in non-local networks (Wang et al. 2018)"
    return describe_weights(evidence, attention)


def has_sink(attention: RecordedAttention) -> bool:
    """Check whether the softmax also counted a logit that belongs to no key."""
    weights = None if attention.softmax_step is None else tensor_of(attention.softmax_step)
    return (
        weights is not None
        and weights.shape[-1] == attention.applied_weights.shape[-1] + 1
        and _is_normalised(weights)
    )


def _is_normalised_later(observation: Observation, attention: RecordedAttention) -> bool:
    """Check whether the context is divided by the sum of its weights, as in blockwise softmax or linear attention.

    The sum is one of the exponentials that weight the values, or is computed from the same queries and keys.
    """
    steps, context = observation.trace.steps, attention.context_step
    exponentials = {step.index for step in attention.chain if step.operation in EXPONENTIALS}
    if attention.softmax_step is not None:
        return False
    for step in steps[context.index + 1 :]:
        if step.operation not in DIVISIONS:
            continue
        operands = [
            ancestors(steps, steps[source.step])
            for source in step.inputs
            if source.step is not None
        ]
        if any(context.index in operand for operand in operands):
            divisors = [operand for operand in operands if context.index not in operand]
            projections = _projections(observation, attention)
            return any(
                exponentials & divisor or (projections and projections <= divisor)
                for divisor in divisors
            )
    return False


def _projections(observation: Observation, attention: RecordedAttention) -> set[int]:
    """Return the indices of the steps that project an attention's queries and keys; none if one step makes both."""
    sources = (attention.query_source, attention.key_source)
    paths = [steps_from_projection(observation, it) for it in sources]
    first = {path[0].index for path in paths if path}
    return first if len(first) == 2 else set()


def _wrong_softmax(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if the weights are wrong already as the softmax returns them."""
    if _is_normalised(attention.weights, attention.empty_slot_weight) or has_sink(attention):
        return None
    if _is_over_joined_keys(attention) or _multiplies_another(evidence, attention):
        return None
    _, Tq, Tk = attention.weights.shape
    case = f"{Tq} queries, {Tk} keys"
    step = attention.softmax_step
    if step is not None and keeps_one_unshifted(attention):
        proof = (
            "The largest score is subtracted before the exponentials, and the 1 that is added to their sum stays: the "
            f"weights depend on the largest score, and sum to {_worst_sum(attention.weights):.3g} for one query."
        )
        remedy = "Add exp(-largest) in place of 1."
        return Finding("rows-not-normalised", "bug", proof, case, SourceLine.of(step), remedy)
    dim = None if step is None else _normalised_dimension(step)
    if step is not None and dim is not None and _weights_are_transposed(evidence, attention):
        return _transposed(attention, step, dim, case)
    if step is not None and dim is not None:
        proof = (
            f"The weights sum to 1 along dimension {dim} of {times(step.shape)}, not over the keys: the first query's "
            f"weights sum to {attention.weights[0, 0].sum():.3g}."
        )
        return Finding("softmax-wrong-dim", "bug", proof, case, _line(evidence, step))
    proof = f"A query's weights sum to {_worst_sum(attention.weights):.3g}, not to 1"
    proof += ": the scores are not normalised by a softmax." if step is None else "."
    applied = [link for link in attention.chain if link.operation != "dropout"]
    last = applied[-1] if applied else attention.context_step
    return Finding("rows-not-normalised", "bug", proof, case, SourceLine.of(step or last))


def _multiplies_another(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether the weights are multiplied by those of another softmax: shares of clusters by shares of tokens."""
    steps, softmax = evidence.baseline.trace.steps, attention.softmax_step
    if softmax is None:
        return False
    softmaxes = {step.index for step in steps if step.operation in SOFTMAXES}
    products = (it for it in attention.chain if it.operation in MULTIPLICATIONS)
    factors = (source.step for it in products for source in it.inputs)
    behind = (ancestors(steps, steps[it]) for it in factors if it is not None)
    return any(softmaxes & it and softmax.index not in it for it in behind)


def _is_over_joined_keys(attention: RecordedAttention) -> bool:
    """Check whether the softmax is over the axis along which the scores were joined to those of other keys."""
    join, softmax = attention.joining_step, attention.softmax_step
    dim = None if join is None or softmax is None else _normalised_dimension(softmax)
    if join is None or softmax is None or dim is None:
        return False
    read = {source.step for source in join.inputs}
    part = next(step for step in attention.chain if step.index in read)
    grown = {n for n, own in zip(join.shape, part.shape, strict=False) if n != own}
    return softmax.shape[dim] in grown


def _weights_are_transposed(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether the names of both projections say that the product with the values sums over the queries."""
    sources = (attention.query_source, attention.key_source)
    paths = (steps_from_projection(evidence.baseline, source) for source in sources)
    names = (next(iter(parameter_names(path[:1])), "") for path in paths)
    return [role_of(own_name(name)) for name in names] == ["key", "query"]


def _transposed(attention: RecordedAttention, softmax: Step, dim: int, case: str) -> Finding:
    """Return the finding on weights that are right, and that meet the values along the axis of the queries."""
    return Finding(
        "softmax-wrong-dim",
        "bug",
        f"The weights {times(softmax.shape)} sum to 1 along dimension {dim}, over the keys, "
        "but the product with the values sums over the queries.",
        case,
        SourceLine.of(attention.context_step),
        "Transpose the weights in the product with the values.",
    )


def _line(evidence: Evidence, step: Step) -> SourceLine | None:
    """Return the line that creates the nn.Softmax which a step's line calls, or else the step's line."""
    return layer_definition(evidence.subject.module, step, nn.Softmax) or SourceLine.of(step)


def _normalised_dimension(step: Step) -> int | None:
    """Return the first dimension, of more than one entry, along which a step's value sums to 1."""
    value = tensor_of(step)
    if value is None:
        return None
    for dim, size in enumerate(value.shape):
        sums = value.sum(dim)
        sums = sums[sums.isfinite()]
        if size > 1 and len(sums) and _are_ones(sums):
            return dim
    return None


def _are_ones(sums: Tensor) -> bool:
    return torch.allclose(sums, torch.ones_like(sums), atol=TOLERANCE)


def _changed_after_softmax(attention: RecordedAttention) -> Finding | None:
    """Return a finding if the softmax's weights are right, but those that meet the values are not."""
    softmax, outside = attention.softmax_step, attention.empty_slot_weight
    rounded = _rounding(attention.weights.dtype)  # before they are cast back
    if (
        softmax is None
        or _is_normalised(attention.applied_weights, outside, rounded)
        or not _is_normalised(attention.weights, outside)
    ):
        return None
    later = (step for step in attention.chain if step.index > softmax.index)
    step = next((step for step in later if _breaks_sums(step, attention)), attention.context_step)
    hidden = (attention.applied_weights == 0) & (attention.weights != 0)
    change = (
        f"{int(hidden[0].sum())} weights are set to 0"
        if hidden.any()
        else "The weights are changed"
    )
    _, Tq, Tk = attention.applied_weights.shape
    worst = _worst_sum(attention.applied_weights)
    return Finding(
        "mask-after-softmax" if hidden.any() else "rows-not-normalised",
        "bug",
        f"{change} after the softmax, so a query's weights sum to {worst:.3g}, not to 1.",
        f"{Tq} queries, {Tk} keys",
        SourceLine.of(step),
    )


def _breaks_sums(step: Step, attention: RecordedAttention) -> bool:
    """Check whether a step returns weights that are not normalised."""
    weights, shape = tensor_of(step), attention.applied_weights.shape
    if weights is None or weights.numel() != shape.numel():
        return False
    return not _is_normalised(weights.reshape(shape))


def _is_normalised(
    weights: Tensor, outside: Tensor | float = 0.0, tolerance: float = TOLERANCE
) -> bool:
    """Check whether all weights are positive, and each row sums to 1; rows without a weight, or with NaN, are skipped.

    Args:
        weights: (…, Tq, Tk).
        outside: (…, Tq), the weight on slots that hold no token; it counts in the sum.
        tolerance: The difference from 1 that is allowed, beside that of the weights' own dtype.
    """
    sums = weights.sum(-1) + outside
    tolerance = max(tolerance, _rounding(weights.dtype))
    sums = sums[(weights != 0).any(-1) & sums.isfinite()]
    positive = (weights >= -TOLERANCE)[weights.isfinite()].all()
    return bool((sums - 1).abs().le(tolerance).all() and positive)


def _rounding(dtype: torch.dtype) -> float:
    """Return the difference from 1 that the rounding to a dtype may cause in the sum of a row of weights."""
    return max(TOLERANCE, TOLERANCES.get(dtype, TOLERANCE))


def _worst_sum(weights: Tensor) -> float:
    """Return the sum of a query's weights that is farthest from 1."""
    sums = weights.sum(-1).flatten()
    return sums[(sums - 1).abs().nan_to_num(0).argmax()].item()
