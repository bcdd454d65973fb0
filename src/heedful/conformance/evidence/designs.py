"""Recognize published designs whose weights are not a softmax's, by what their code says or by what they compute.

Weights without a softmax are right where they are meant, and a bug where the softmax was forgotten. They are meant if
the code names the function in its names, docstrings or comments, if something trained takes part, if tanh gives them,
or if they are divided by the number of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from heedful.conformance.calling.masks import MASK_WORDS
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.dataflow import (
    DIFFERENCES,
    EXPONENTIALS,
    PRODUCTS,
    SOFTMAXES,
    VIEWS,
    ancestors,
    behind_views,
    read_by,
    steps_from_tokens,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.target_source import prose_about
from heedful.observation import Source, Step

TOLERANCE = 1e-4
WITHOUT_SOFTMAX: tuple[str, ...] = (
    *("linear attention", "linearattention", "linear_attention", "linear-attention", "kernel"),
    *("retention", "retnet", "performer", "softmax-free", "softmaxfree", "softmax free"),
    *("without softmax", "without a softmax", "no softmax", "unnormali", "not normali"),
)
"""Words that announce weights without a softmax."""
TEMPERATURE: re.Pattern[str] = re.compile(r"^(tau|temp|temperature|logit_scale)$")
"""What a parameter is called that scores are divided by, or multiplied with, before the softmax."""
GATE, BOUND = "sigmoid", "tanh"
PLAIN: tuple[str, ...] = ("masked_fill", "where", "dropout", "mask")
"""Operations that say nothing about a design even if a comment names them."""


def describe_weights(evidence: Evidence, attention: RecordedAttention) -> str:
    """Describe why an attention's weights need not sum to 1; return "" if nothing says that they are meant to."""
    if attention.softmax_step is None:
        return _describe_function(evidence, attention)
    if _has_constant_in_denominator(attention):
        return "a softmax with a constant in its denominator: some weight goes to no key"
    if has_late_temperature(evidence, attention):
        return ""
    if any(_is_trained(evidence.baseline, source) for source in _read_after_softmax(attention)):
        return "several softmaxes, combined by trained numbers: a differential attention?"
    if _subtracts_another(evidence, attention):
        return "the difference of two softmaxes: a differential attention?"
    if _are_squares(evidence, attention):
        return "squared for variances, beside the weights themselves"
    factor = _factor_given(evidence, attention)
    return f"multiplied by {factor}, which each call gives" if factor else ""


def _factor_given(evidence: Evidence, attention: RecordedAttention) -> str:
    """Return the argument that multiplies the weights by other numbers than those of a mask; "" if none does."""
    run, tokens = evidence.baseline, evidence.subject.convention.names
    for source in _read_after_softmax(attention):
        given = behind_views(run.trace.steps, source)
        value = value_of(run, given)
        named_so = any(it in given.name.lower() for it in MASK_WORDS)
        if given.kind != "input" or named_so or given.name in tokens or value is None:
            continue
        if value.is_floating_point() and not ((value == 0) | (value == 1)).all():
            return given.name
    return ""


def _subtracts_another(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether the weights are the difference of the results of two softmaxes, of which none reads the other."""
    steps = evidence.baseline.trace.steps
    for step in attention.chain:
        operands = [it.step for it in step.inputs if it.step is not None]
        if step.operation not in DIFFERENCES or len(operands) != 2:
            continue
        one, other = (_softmaxes_behind(steps, it) for it in operands)
        if one - other and other - one:
            return True
    return False


def _softmaxes_behind(steps: Sequence[Step], index: int) -> set[int]:
    """Return the indices of the softmaxes that a step's result was computed from."""
    return {it for it in ancestors(steps, steps[index]) if steps[it].operation in SOFTMAXES}


def _are_squares(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether the squares of weights are applied, and the weights themselves to other values."""
    squared = torch.allclose(attention.applied_weights, attention.weights**2)
    others = (it for it in evidence.attentions if it.softmax_step is attention.softmax_step)
    return squared and any(torch.equal(it.applied_weights, it.weights) for it in others)


def reads_trained_numbers(observation: Observation, attention: RecordedAttention) -> bool:
    """Check whether the steps from scores to weights read a trained tensor, as a learned temperature or bias."""
    steps = (step for step in attention.chain if step is not attention.scores_step)
    return any(_is_trained(observation, source) for source in _read_beside(attention, steps))


def reads_other_tokens(observation: Observation, attention: RecordedAttention) -> bool:
    """Check whether the steps from scores to weights read something else that was computed from the tokens."""
    steps, softmax = observation.trace.steps, attention.softmax_step
    from_tokens = steps_from_tokens(steps)
    before = (
        step
        for step in attention.chain
        if step is not attention.scores_step and (softmax is None or step.index < softmax.index)
    )
    beside = _read_beside(attention, before)
    return any(
        source.step in from_tokens and steps[source.step].dtype.is_floating_point
        for source in beside
        if source.step is not None
    )


def is_named(evidence: Evidence, operation: str) -> bool:
    """Check whether the target's code names an operation in words, and so means it."""
    name = operation.strip("_")
    return len(name) > 3 and name not in SOFTMAXES and name in prose_about(evidence.subject.callee)


# --- without a softmax -------------------------------------------------------------------------------


def _describe_function(evidence: Evidence, attention: RecordedAttention) -> str:
    operations = [step.operation.strip("_") for step in attention.chain]
    if not set(operations).isdisjoint(EXPONENTIALS):
        return ""  # half of a softmax
    prose = prose_about(evidence.subject.callee)
    functions = [name for name in operations if name not in (*PRODUCTS, *VIEWS, *PLAIN)]
    named = [name for name in functions if is_named(evidence, name)]
    if named or any(words in prose for words in WITHOUT_SOFTMAX):
        return f"not normalized: {named[0] if named else 'linear'} attention?"
    if functions[-1:] == [GATE] and _has_sigmoid_layer(evidence):
        return "not normalized: a sigmoid layer gives the weights"
    if functions[-1:] == [BOUND]:
        return "not normalized: tanh gives the weights"
    if GATE in operations and attention.weights.shape[1] == 1 < attention.weights.shape[2]:
        return "not normalized: a gate for each token"
    if reads_trained_numbers(evidence.baseline, attention):
        return "not normalized: trained numbers take part"
    if _depends_on_length(evidence, attention):
        return "not normalized by a sum, but by the number of tokens"
    return ""


def _has_sigmoid_layer(evidence: Evidence) -> bool:
    """Check whether a target keeps a layer of sigmoids, which its constructor announces."""
    module = evidence.subject.module
    return module is not None and any(isinstance(part, nn.Sigmoid) for part in module.modules())


def _depends_on_length(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether a weight changes with the number of tokens, although its query and key stay the same."""
    T = evidence.inputs.sizes[1]
    if evidence.subject.fixed_sizes is not None or attention.weights.shape[1:] != (T, T):
        return False
    index = evidence.attentions.index(attention)
    shorter = find_attentions(evidence.subject.record(evidence.inputs.tokens(0, T - 2)))
    if index >= len(shorter):
        return False
    rest, kept = shorter[index], (slice(None), slice(0, T - 2), slice(0, T - 2))
    if rest.scores.shape != attention.scores[kept].shape:
        return False
    same_scores = not differing_entries(rest.scores, attention.scores[kept]).any()
    weights = attention.applied_weights[kept]
    return same_scores and bool(differing_entries(rest.applied_weights, weights).any())


# --- around a softmax --------------------------------------------------------------------------------


def _has_constant_in_denominator(attention: RecordedAttention) -> bool:
    """Check whether weights are exp(score) / (c + Σ exp(score)), with one c > 0 for each head.

    The scores may be any values in the chain, because the largest one is often subtracted from all first. A c of 1 that
    is kept then is no constant of the scores themselves.
    """
    return not keeps_one_unshifted(attention) and any(True for _ in _constants(attention))


def keeps_one_unshifted(attention: RecordedAttention) -> bool:
    """Check whether weights are exp(score − largest) / (1 + Σ exp(score − largest)), where 1 is not shifted, too."""
    return any(
        bool((scores.amax(-1) == 0).all() and (constants - 1).abs().le(TOLERANCE).all())
        for scores, constants in _constants(attention)
    )


def _constants(attention: RecordedAttention) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield values in the chain, and the c of each row, if weights are exp(value) / (c + Σ exp(value))."""
    weights, softmax = attention.weights, attention.softmax_step
    assert softmax is not None
    sums = weights.sum(-1)
    if not (torch.isfinite(weights).all() and (weights >= 0).all() and (sums < 1).all()):
        return
    for step in attention.chain:
        value = tensor_of(step)
        if step.index >= softmax.index or value is None or value.numel() != weights.numel():
            continue
        scores = value.reshape(weights.shape).double()
        if differing_entries(scores.softmax(-1), weights / sums.unsqueeze(-1)).any():
            continue
        constants = (1 / sums - 1) * scores.exp().sum(-1)
        if torch.allclose(constants, constants[:, :1].expand_as(constants), rtol=TOLERANCE):
            yield scores, constants


def _read_after_softmax(attention: RecordedAttention) -> Iterator[Source]:
    """Yield what the steps after the softmax read beside its weights."""
    softmax = attention.softmax_step
    assert softmax is not None
    later = (step for step in attention.chain if step.index > softmax.index)
    return _read_beside(attention, later)


def _read_beside(attention: RecordedAttention, steps: Iterator[Step]) -> Iterator[Source]:
    """Yield the sources that some steps of a chain read beside the chain itself."""
    chain = {step.index for step in attention.chain}
    return (source for step in steps for source in read_by(step) if source.step not in chain)


def has_late_temperature(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether a temperature meets the weights, after the softmax."""
    if attention.softmax_step is None:
        return False
    return any(_is_temperature(evidence.baseline, it) for it in _read_after_softmax(attention))


def _is_temperature(observation: Observation, source: Source) -> bool:
    """Check whether a tensor is computed from one parameter alone, which is called a temperature."""
    steps = observation.trace.steps
    behind = set[int]() if source.step is None else ancestors(steps, steps[source.step])
    read = {source, *(it for index in behind for it in steps[index].inputs)}
    outer = {it.name for it in read if it.step is None}
    return (
        len(outer) == 1 and TEMPERATURE.search(outer.pop().rpartition(".")[2].lower()) is not None
    )


def _is_trained(observation: Observation, source: Source) -> bool:
    """Check whether a tensor is a parameter, or computed from one or from a softmax."""
    if source.step is None:
        return source.kind == "parameter"
    steps = observation.trace.steps
    behind = [steps[index] for index in ancestors(steps, steps[source.step])]
    return any(step.operation in SOFTMAXES for step in behind) or any(
        read.kind == "parameter" for step in behind for read in step.inputs
    )


def is_normalized_again(weights: Tensor, applied: Tensor) -> bool:
    """Check whether weights that do not sum to 1 are divided by their sums before they meet the values."""
    sums = applied.sum(-1)
    positive = bool((applied >= -TOLERANCE).all())
    return positive and bool((sums - 1).abs().le(TOLERANCE).all()) and weights is not applied
