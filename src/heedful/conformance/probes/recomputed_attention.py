"""Check an attention against the one that its own queries, keys and values should make, step by step.

This catches what no other probe has a name for: the logits must be the scores times one number for each head, plus what
depends on positions alone; the weights must be their softmax over the visible keys; and the values must be those that
were projected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import FAINT, RecordedAttention
from heedful.conformance.evidence.attention_search import TRANSPOSING, find_attentions
from heedful.conformance.evidence.chain import (
    CAPS,
    DIVISIONS,
)
from heedful.conformance.evidence.designs import (
    describe_weights,
    is_named,
    reads_other_tokens,
    reads_trained_numbers,
)
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.regression import centred, slope_of
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    PRODUCTS,
    SCALINGS,
    SOFTMAXES,
    ancestors,
    is_projection,
    steps_from_projection,
)
from heedful.conformance.recording.observation import tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times

TOLERANCE = 1e-5
"""The largest difference of two weights that rounding, or an ε in a denominator, may cause."""
# A function for hidden layers is no accident, as in co-attention: it may be the design.
ACTIVATIONS: frozenset[str] = frozenset({"relu", "leaky_relu", "elu", "gelu", "silu", "softplus"})
HALVES: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)


@probe("weights-wrong", "softmax-twice", "context-wrong")
def recomputed_attention(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compute the logits and weights again from the queries and keys, and find the first step that departs."""
    others = find_attentions(evidence.on_other_tokens(1))
    for index, attention in enumerate(evidence.attentions):
        other = others[index] if index < len(others) else None
        finding = _rounded_scores(evidence, attention) or _departure(evidence, attention, other)
        if finding:
            yield finding
            return


def _departure(
    evidence: Evidence, attention: RecordedAttention, other: RecordedAttention | None
) -> Finding | None:
    """Return a finding on the first step that departs; `other` is the same attention of other tokens."""
    if attention.fused:
        return _scaled_values(evidence, attention)
    if not _is_softmax_of_keys(attention):
        return None
    return (
        _own_key_in_every_score(evidence, attention)
        or (other and _wrong_logits(evidence, attention, other))
        or _wrong_weights(evidence, attention)
        or _scaled_values(evidence, attention)
    )


def _is_softmax_of_keys(attention: RecordedAttention) -> bool:
    """Check whether the output of a softmax over the keys was found, and those of other probes are ruled out."""
    weights = attention.softmax_step and tensor_of(attention.softmax_step)
    if weights is None or weights.numel() != attention.weights.numel():
        return False
    if not attention.logits.shape == attention.weights.shape == attention.applied_weights.shape:
        return False
    sums = attention.weights.sum(-1) + attention.empty_slot_weight
    sums = sums[sums.isfinite() & (sums != 0)]
    return bool((sums - 1).abs().le(TOLERANCE).all())


# --- from projections to scores ----------------------------------------------------------------------


def _rounded_scores(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if queries or keys have half the digits of the values.

    All three may be cast together, for a kernel that takes nothing else.
    """
    if attention.value.dtype in HALVES:
        return None
    for source, what in ((attention.query_source, "queries"), (attention.key_source, "keys")):
        path = steps_from_projection(evidence.baseline, source)
        step = next((step for step in path if step.dtype in HALVES), None)
        if step is not None:
            rounded, given = (
                str(it).removeprefix("torch.") for it in (step.dtype, attention.value.dtype)
            )
            proof = f"The {what} are rounded to {rounded}, whatever the dtype of the tokens; the values stay {given}."
            return Finding("weights-wrong", "bug", proof, f"{given} tokens", SourceLine.of(step))
    return None


# --- from scores to logits ---------------------------------------------------------------------------


def _wrong_logits(
    evidence: Evidence, attention: RecordedAttention, other: RecordedAttention
) -> Finding | None:
    """Return a finding if the logits are neither the scaled scores nor made by a known design."""
    if attention.scores.shape != other.scores.shape or not departs_from_scores(
        attention, other, attention.logits, other.logits
    ):
        return None
    before = [step for step in attention.chain[1:] if step.index < _softmax_index(attention)]
    explained = (
        any(step.operation in CAPS for step in before)
        or reads_trained_numbers(evidence.baseline, attention)
        or reads_other_tokens(evidence.baseline, attention)
    )
    if explained:
        return None
    step = _first_departing(attention, other, before) or attention.softmax_step
    assert step is not None
    if is_named(evidence, step.operation):
        return None
    proof = (
        f"{step.name!r} is not query · key times a number plus a bias of the positions: {step.operation} changes the "
        "scores in another way before the softmax."
    )
    case = f"{attention.scores.shape[1]} queries, {attention.scores.shape[2]} keys"
    may_be_meant = step.operation.strip("_") in ACTIVATIONS and not _meets_hidden(evidence, step)
    level = "suspicious" if may_be_meant else "bug"
    return Finding("weights-wrong", level, proof, case, SourceLine.of(step))


def _meets_hidden(evidence: Evidence, step: Step) -> bool:
    """Check whether a step reads scores of which a mask has hidden some, which an activation makes seen again."""
    read = (value_of(evidence.baseline, source) for source in step.inputs)
    return any(it is not None and bool((it == -torch.inf).any()) for it in read)


def _own_key_in_every_score(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if scores are divided by lengths of keys that lie along the axis of the queries."""
    steps = evidence.baseline.trace.steps
    sources = (attention.query_source, attention.key_source)
    operands = {it for source in sources if (it := _before_turns(steps, source.step)) is not None}
    if len(operands) != len(sources):
        return None
    chain = {step.index for step in attention.chain}
    for step in attention.chain[1:]:
        divisor = next((it.step for it in step.inputs if it.step not in chain), None)
        if step.index > _softmax_index(attention) or step.operation not in DIVISIONS:
            continue
        if divisor is None or not operands <= ancestors(steps, steps[divisor]):
            continue
        shape = steps[divisor].shape
        if len(shape) < 2 or shape[-1] != 1 or shape[-2] != attention.scores.shape[1]:
            continue
        made = sorted(ancestors(steps, steps[divisor]) - operands)
        joining = next(it for it in made if operands <= ancestors(steps, steps[it]))
        proof = (
            f"Each score of query i is divided by {times(shape)} numbers that are computed from queries and keys: "
            "the key of token i takes part in all of them, and the key that is compared in none."
        )
        remedy = (
            "Transpose what is computed from the keys, so that it lies along the axis of the keys."
        )
        case = f"{attention.scores.shape[1]} queries, {attention.scores.shape[2]} keys"
        return Finding("weights-wrong", "bug", proof, case, SourceLine.of(steps[joining]), remedy)
    return None


def _before_turns(steps: Sequence[Step], index: int | None) -> int | None:
    """Return the step that an operand of a product only transposes."""
    while index is not None and steps[index].operation in TRANSPOSING:
        index = steps[index].inputs[0].step
    return index


def _softmax_index(attention: RecordedAttention) -> int:
    assert attention.softmax_step is not None
    return attention.softmax_step.index


def departs_from_scores(
    attention: RecordedAttention, other: RecordedAttention, logits: Tensor, other_logits: Tensor
) -> bool:
    """Check whether logits are not a number for each head times the scores, plus what depends on positions.

    Logits that are the same for other tokens are those of hidden keys.
    """
    visible = attention.visible & other.visible & logits.isfinite() & other_logits.isfinite()
    visible &= logits != other_logits
    x = centred(attention.scores - other.scores, visible)
    y = centred(logits - other_logits, visible)
    heads = range(len(x))
    return any(x[l].norm() > 0 and slope_of(x[l], y[l]) is None for l in heads)


def _first_departing(
    attention: RecordedAttention, other: RecordedAttention, steps: list[Step]
) -> Step | None:
    """Return the first step whose value departs from the scaled scores."""
    shape = attention.scores.shape
    twins = {step.index: step for step in other.chain}
    for step in steps:
        twin = twins.get(step.index)
        pair = [tensor_of(it) for it in (step, twin) if it is not None]
        values = [value for value in pair if value is not None and value.numel() == shape.numel()]
        if len(values) == 2 and departs_from_scores(
            attention, other, *(it.reshape(shape) for it in values)
        ):
            return step
    return None


# --- from logits to weights --------------------------------------------------------------------------


def _wrong_weights(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if the weights that meet the values are not the softmax of the logits of visible keys."""
    visible = attention.visible & attention.logits.isfinite()
    logits = attention.logits.masked_fill(~visible, -torch.inf)
    expected = logits.softmax(-1).nan_to_num(0.0)
    departs = partial(_differs, expected, visible)
    if attention.empty_slot_weight.any() or not departs(attention.applied_weights):
        return None
    if describe_weights(evidence, attention):
        return None
    later = [step for step in attention.chain if step.index >= _softmax_index(attention)]
    shape = attention.weights.shape
    values = ((step, tensor_of(step)) for step in later)
    fitting = [(step, it) for step, it in values if it is not None and it.numel() == shape.numel()]
    step = next((step for step, it in fitting if departs(it.reshape(shape))), later[-1])
    if is_named(evidence, step.operation):
        return None
    again = step.operation in SOFTMAXES and step is not attention.softmax_step
    l, i, j = _farthest(expected, attention.applied_weights, visible)
    proof = (
        f"{'A second softmax is applied to the weights' if again else f'{step.operation} changes the weights'}: "
        f"query {i} gives key {j} a weight of {attention.applied_weights[l, i, j]:.3g}; the softmax of its scores is "
        f"{expected[l, i, j]:.3g}."
    )
    case = f"{shape[1]} queries, {shape[2]} keys"
    name = "softmax-twice" if again else "weights-wrong"
    return Finding(name, "bug", proof, case, SourceLine.of(step))


def _differs(expected: Tensor, visible: Tensor, weights: Tensor) -> bool:
    """Check whether weights differ from the expected ones where keys are visible, up to one factor for each row."""
    weights = weights.masked_fill(~visible, 0.0)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(FAINT)
    seen = visible.any(-1)
    return bool(((weights - expected).abs() > TOLERANCE).any(-1)[seen].any())


def _farthest(expected: Tensor, weights: Tensor, visible: Tensor) -> tuple[int, int, int]:
    difference = ((weights - expected).abs() * visible).nan_to_num(0.0)
    l, i, j = (int(n) for n in torch.unravel_index(difference.argmax(), difference.shape))
    return l, i, j


# --- values ------------------------------------------------------------------------------------------


def _scaled_values(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if the values are multiplied by the scale of the scores."""
    D = attention.query.shape[-1]
    path = steps_from_projection(evidence.baseline, attention.value_source)
    if any(step.operation in PRODUCTS and not is_projection(step) for step in path):
        return None  # the values are the context of another attention
    for step in path:
        factor = _constant_factor(evidence, step) if step.operation in SCALINGS else None
        if factor is not None and D > 1 and abs(factor - D**-0.5) <= TOLERANCE:
            proof = f"The values are multiplied by {factor:.4g} = 1/√head_dim, which is the scale of the scores."
            return Finding("context-wrong", "bug", proof, f"head size {D}", SourceLine.of(step))
    return None


def _constant_factor(evidence: Evidence, step: Step) -> float | None:
    """Return the number by which a step multiplies all entries of a tensor; None for other steps."""
    sources = [argument for argument in step.arguments if isinstance(argument, Source)]
    before = value_of(evidence.baseline, sources[0]) if len(sources) == 1 else None
    after = tensor_of(step)
    if before is None or after is None or before.shape != after.shape or not before.norm() > 0:
        return None
    return (after.norm() / before.norm()).item()
