"""Probe: hidden keys stay hidden however large the scores are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import FAINT, RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.designs import reads_trained_numbers
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fills import FILLING_OPERATIONS, fill_line, fill_of
from heedful.conformance.evidence.masking import masking_step, scores_after
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    ancestors,
    steps_from_tokens,
)
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source

# No score outweighs a fill below this. −65504, the lowest float16, does not suffice.
SUFFICIENT_FILL = -1e5
CLOSE = 1e-4  # the relative error of a scaled score in float32
# Above this, a weight on a key like all others was not hidden.
SLIGHT = 1e-6
LIKE_A_BIAS = 2 * math.log(FAINT)  # −55: a scaled bias reaches it, and fills are −100 or lower
LIKE_SCORES = 10.0  # a fill up to this hides nothing from a softmax
EXCESS = 16  # how many times as large as the fill the scaled scores are


@probe("mask-fill-too-small")
def mask_fill(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Scale the tokens until scores exceed a finite fill, and check that hidden keys stay hidden."""
    yield from find_weak_fill(
        evidence.baseline,
        evidence.subject.record,
        lambda attention, hidden: _line(evidence, attention),
    )
    found = next(_fills_like_scores(evidence), None) or next(_fills_before_softmax(evidence), None)
    if found is not None:
        yield found


def _fills_like_scores(evidence: Evidence) -> Iterator[Finding]:
    """Report a fill as large as scores are, such as 1e-9: the keys that it should hide keep a weight like all others.

    A mask that is computed from the tokens may mean something else.
    """
    steps = evidence.baseline.trace.steps
    from_tokens = set[int]() if evidence.inputs.vocabulary else steps_from_tokens(steps)
    for attention in evidence.attentions:
        softmax = attention.softmax_step
        for step in attention.chain if softmax is not None else ():
            fill, scores = fill_of(evidence.baseline, step), scores_after(step, attention)
            masks = (it for it in step.inputs if _is_mask(evidence.baseline, it))
            if (
                step.operation not in FILLING_OPERATIONS
                or fill is None
                or abs(fill) > LIKE_SCORES
                or scores is None
                or any(it.step in from_tokens for it in masks)
            ):
                continue
            filled = scores == fill
            seen = filled & (attention.applied_weights > FAINT)
            if seen.any() and not filled.all():
                l, i, j = seen.nonzero()[0].tolist()
                weight = attention.applied_weights[l, i, j]
                proof = (
                    f"Hidden scores are set to {fill:.3g}, not to −∞: query {i} gives a weight of {weight:.3g} to the "
                    f"hidden key {j}."
                )
                case = f"{scores.shape[1]} queries, {scores.shape[2]} keys"
                place = fill_line(evidence, step)
                yield Finding("mask-fill-too-small", "bug", proof, case, place)
                return


def _fills_before_softmax(evidence: Evidence) -> Iterator[Finding]:
    """Report a softmax of scores that an argument of the call hides by a small number, whatever computes the scores.

    The run itself may hide none of them.
    """
    observation, steps = evidence.baseline, evidence.baseline.trace.steps
    for softmax in (it for it in steps if it.operation in SOFTMAXES):
        filling = softmax.inputs[0].step if softmax.inputs else None
        if filling is None or steps[filling].operation not in FILLING_OPERATIONS:
            continue
        step = steps[filling]
        fill = fill_of(observation, step)
        given = (_is_given(evidence, it) for it in step.inputs if _hides_keys(observation, it))
        if fill is not None and abs(fill) < LIKE_SCORES and any(given):
            yield Finding(
                "mask-fill-too-small",
                "bug",
                f"Scores that the mask hides are set to {fill:.3g}, not to −∞, before the softmax: exp({fill:.3g}) is "
                f"{math.exp(fill):.3g}, and hidden keys keep a weight like all others.",
                "",
                fill_line(evidence, step),
            )
            return


def _hides_keys(observation: Observation, source: Source) -> bool:
    """Check whether a tensor is a mask of keys; one of whole rows tells which queries see any key."""
    value = value_of(observation, source)
    return value is not None and value.dtype is torch.bool and value.shape[-1:] != (1,)


def _is_given(evidence: Evidence, mask: Source) -> bool:
    """Check whether a mask is an argument of the call, or is made from one, without the tokens."""
    steps, names = evidence.baseline.trace.steps, evidence.subject.convention.names
    if mask.step is None:
        return mask.kind == "input" and mask.name not in names
    behind = ancestors(steps, steps[mask.step])
    read = [source for index in behind for source in steps[index].inputs if source.kind == "input"]
    return bool(read) and not any(source.name in names for source in read)


def _is_mask(observation: Observation, source: Source) -> bool:
    value = value_of(observation, source)
    return value is not None and value.dtype is torch.bool


def _line(evidence: Evidence, attention: RecordedAttention) -> SourceLine | None:
    """Return the line that defines the fill of an attention's mask."""
    step = masking_step(attention)
    return None if step is None else fill_line(evidence, step)


def find_weak_fill(
    observation: Observation,
    record: Callable[[Inputs], Observation],
    line_of_fill: Callable[[RecordedAttention, Tensor], SourceLine | None],
) -> Iterator[Finding]:
    """Yield a finding if scaled tokens give hidden keys some weight.

    Args:
        observation: a run in which keys are hidden.
        record: repeats the run on other tokens.
        line_of_fill: returns the source line that hides keys, given an attention and its hidden keys (L, Tq, Tk).
    """
    if observation.inputs.vocabulary:
        return
    for attention in find_attentions(observation):
        hidden = (
            (attention.weights < FAINT) & attention.logits.isfinite() & ~_as_computed(attention)
        )
        # Without a softmax, a fill need not be low, and a weight may be 0 or negative because its score is.
        if attention.softmax_step is None or not hidden.any():
            continue
        hidden &= _hidden_among_equals(hidden, record(observation.inputs.alike()))
        if not hidden.any():
            continue
        fill = attention.logits[hidden].max().item()
        if fill < SUFFICIENT_FILL:
            continue
        if fill > LIKE_A_BIAS and reads_trained_numbers(observation, attention):
            continue  # so weak a number is no fill: trained biases of these keys and of others are that far apart
        largest = attention.logits[attention.visible].abs().max().clamp_min(1e-6).item()
        factor = (EXCESS * abs(fill) / largest) ** 0.5  # products grow by its square
        proof = _proof_of_weak_fill(hidden, fill, record(observation.inputs.scaled(factor)))
        if proof:
            place = line_of_fill(attention, hidden)
            yield Finding("mask-fill-too-small", "bug", proof, f"tokens × {factor:.0f}", place)
            return


def _as_computed(attention: RecordedAttention) -> Tensor:
    """Return which logits (L, Tq, Tk) are scaled scores that no mask has changed: their weights are small by chance."""
    scores, logits = attention.scores, attention.logits
    seen = attention.visible & logits.isfinite()
    if scores.shape != logits.shape or not seen.any():
        return logits.new_zeros(logits.shape, dtype=torch.bool)
    return torch.isclose(logits, (logits / scores)[seen].median() * scores, rtol=CLOSE)


def _hidden_among_equals(hidden: Tensor, alike: Observation) -> Tensor:
    """Return which keys (L, Tq, Tk) have no weight among keys that are all alike, so that a mask must hide them."""
    for attention in find_attentions(alike):
        if attention.applied_weights.shape == hidden.shape:
            return attention.applied_weights.abs() < SLIGHT
    return torch.ones_like(hidden)


def _proof_of_weak_fill(hidden: Tensor, fill: float, scaled: Observation) -> str:
    """Describe a hidden key that has some weight in a run on scaled tokens; return "" if none has."""
    for attention in find_attentions(scaled):
        if attention.weights.shape != hidden.shape:
            continue
        # A mask may be multiplied with the weights, too; what else changes them after the softmax does not count.
        seen = (attention.weights > FAINT) & (attention.applied_weights != 0) & hidden
        if seen.any():
            l, i, j = seen.nonzero()[0].tolist()
            return (
                f"Hidden scores are set to about {fill:.3g}, not to −∞. With products of queries and keys up to "
                f"{attention.scores.abs().max():.3g}, query {i} gives a weight of "
                f"{attention.weights[l, i, j]:.3g} to the hidden key {j}."
            )
    return ""
