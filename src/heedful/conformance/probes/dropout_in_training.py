"""Probe: in training, dropout acts on the weights, and keeps their expected sum."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.dropout import dropout_probability, dropout_steps
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import MULTI_HEAD
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import (
    VIEWS,
    ancestors,
    is_projection,
    steps_from_projection,
    steps_to_next_projection,
)
from heedful.conformance.recording.differences import same_steps
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

ENOUGH_WEIGHTS = 800  # to estimate a dropout probability within a few percent
MAX_RUNS = 30  # to collect as many
SIGMAS = 5.0  # how uncertain the estimate is taken to be, in standard deviations
TOLERANCE = 1e-4
SAID: re.Pattern[str] = re.compile(r"#.*\b(value|context|output)\w*\b.*\bdropout\b")
"""A comment that says that a line drops entries behind the weighted values, as its author means it."""
SCALINGS: tuple[str, ...] = ("mul", "imul", "div", "truediv", "itruediv")
MERGING: tuple[str, ...] = ("view", "reshape", "flatten", "cat")
CONSEQUENCES: dict[str, str] = {
    "scores": "before the softmax: such a key is not dropped, but gets the weight of a score of 0.",
    "queries": "before the scores are computed: all scores change, and no weight is dropped.",
    "keys": "before the scores are computed: all scores change, and no weight is dropped.",
    "values": "and no weight is dropped.",
    "context": "after the values are weighted: single features are dropped instead of whole weights.",
}


class _Dropout(NamedTuple):
    """A step that drops entries, and of which tensor: "weights", "scores", "output", …"""

    step: Step
    tensor: str


@probe("dropout-misplaced", "dropout-rescale")
def dropout_in_training(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Find the steps that drop entries in train mode, and check that they drop weights and rescale the rest."""
    subject = evidence.subject
    first, second = map(evidence.in_training, (1, 2))
    attentions = find_attentions(first)
    dropouts = [
        _Dropout(step, dropped_tensor(step, attentions, first))
        for step in dropout_steps(first, second)
    ]
    places = dict.fromkeys(map(_describe, dropouts))
    if places or same_steps(first, second):
        yield Fact("dropout", "; ".join(places) or "none")
    misplaced = _first_misplaced(dropouts)
    if misplaced is not None:
        of_tokens = any(it.tensor == "tokens" for it in dropouts)
        weighted = any(it.fused or it.softmax_step is not None for it in attentions)
        of_features = subject.convention.pooled or not weighted
        in_part = all(_is_within_part(misplaced.step, it.scores_step) for it in attentions)
        yield _misplacement(
            first, misplaced, of_tokens=of_tokens, of_features=of_features, in_part=in_part
        )
    misscaled = _misscaled(evidence, attentions, [dropout.step for dropout in dropouts])
    if misscaled is not None:
        yield misscaled


def dropped_tensor(
    step: Step, attentions: list[RecordedAttention], observation: Observation
) -> str:
    """Return the name of the tensor that a step drops from: "weights", "scores", "keys", "context", "output", …"""
    for attention in attentions:
        if step in attention.chain:
            softmax = attention.softmax_step
            return "scores" if softmax is not None and step.index < softmax.index else "weights"
        for name, source in (
            ("queries", attention.query_source),
            ("keys", attention.key_source),
            ("values", attention.value_source),
        ):
            if step in steps_from_projection(observation, source)[1:]:
                return name
        context = {
            view.index for view in steps_to_next_projection(observation, attention.context_step)
        }
        if any(source.step in context for source in step.inputs):
            return "output" if _is_added(step, observation) else "context"
    if step.operation == MULTI_HEAD:
        return "weights"
    earlier = ancestors(observation.trace.steps, step)
    attended = any(attention.context_step.index in earlier for attention in attentions)
    return "output" if attended or not attentions else "tokens"


def _is_added(step: Step, observation: Observation) -> bool:
    """Check whether a result is added to another tensor next, as a sublayer's output is to its input."""
    views = {view.index for view in steps_to_next_projection(observation, step)}
    return any(
        it.operation in ADDITIONS and any(source.step in views for source in it.inputs)
        for it in observation.trace.steps[step.index + 1 :]
    )


def _describe(dropout: _Dropout) -> str:
    """Return a phrase such as "on the weights, p = 0.1"."""
    p = dropout_probability(dropout.step)
    return f"on the {dropout.tensor}" + ("" if p is None else f", p = {p:.3g}")


# --- where ---------------------------------------------------------------------------------------------


def _first_misplaced(dropouts: list[_Dropout]) -> _Dropout | None:
    """Return the first dropout in a wrong place; features may be dropped as well as weights, but not instead."""
    misplaced = [dropout for dropout in dropouts if dropout.tensor == "scores"]
    if not any(dropout.tensor == "weights" for dropout in dropouts):
        misplaced += [dropout for dropout in dropouts if dropout.tensor in CONSEQUENCES]
    return next(iter(misplaced), None)


def _is_within_part(step: Step, scores: Step) -> bool:
    """Check whether a step is made by a part of the module that makes the scores, as a block that projects."""
    part, whole = step.module or "", scores.module or ""
    return part.startswith(f"{whole}." if whole else "") and part != whole


def _misplacement(
    observation: Observation,
    dropout: _Dropout,
    *,
    of_tokens: bool,
    of_features: bool,
    in_part: bool,
) -> Finding:
    """Build the finding on dropout in a wrong place, in code that drops features of the tokens, too, or does not.

    A block that projects may drop features, as any layer. A pooled context is a vector of features, which may be
    dropped as those of any layer, and so is one without a softmax, as a retention, and one of merged heads that no
    projection follows. The line's own comment may say that it drops.
    """
    step, tensor = dropout
    value, steps = tensor_of(step), observation.trace.steps
    # Beside one of the tokens, and without a projection behind it, it may be that of the sublayer's output.
    projected = any(is_projection(it) and step.index in ancestors(steps, it) for it in steps)
    merged = any(it.operation in MERGING for it in _views_behind(observation, step))
    of_features |= (of_tokens or merged) and not projected
    unsure = tensor == "values" or in_part or (tensor == "context" and of_features)
    unsure |= SAID.search(step.source) is not None
    share = "some" if value is None else f"{int((value == 0).sum())} of {value.numel()}"
    B, T = observation.inputs.sizes
    return Finding(
        "dropout-misplaced",
        "suspicious" if unsure else "bug",
        f"In training, {share} entries of the {tensor} are set to 0, {CONSEQUENCES[tensor]}",
        f"B = {B}, T = {T}",
        SourceLine.of(step),
    )


def _views_behind(observation: Observation, step: Step) -> Iterator[Step]:
    """Yield the views of a context that a step drops from, the last one first."""
    steps = observation.trace.steps
    source = step.inputs[0].step if step.inputs else None
    while source is not None and steps[source].operation in VIEWS:
        yield steps[source]
        source = steps[source].inputs[0].step


# --- by which factor -----------------------------------------------------------------------------------


def _misscaled(
    evidence: Evidence, attentions: list[RecordedAttention], dropping: list[Step]
) -> Finding | None:
    """Return a finding if weights that are kept do not grow by 1 / (1 − p)."""
    runs = [attentions]
    for index, attention in enumerate(attentions):
        softmax = attention.softmax_step
        steps = [step for step in dropping if step in attention.chain and not attention.fused]
        if not steps or softmax is None or steps[0].index < softmax.index:
            continue
        if torch.equal(attention.weights, attention.applied_weights):
            continue  # the weights before dropout are unknown, as those of a softmax that has a sink
        p = dropout_probability(steps[0]) if len(steps) == 1 else None
        visible = int(attention.visible.sum())
        while p is None and len(runs) * visible < ENOUGH_WEIGHTS and len(runs) < MAX_RUNS:
            again = evidence.subject.fresh(train=True, seed=2 + len(runs))
            runs.append(find_attentions(again.record(evidence.inputs)))
        factors = torch.cat([_factors(run[index]) for run in runs])
        proof = _proof_of_wrong_factor(factors, p)
        if proof:
            place = SourceLine.of(_last_scaling(attention, steps[-1]))
            return Finding("dropout-rescale", "bug", proof, f"{len(factors)} weights", place)
    return None


def _factors(attention: RecordedAttention) -> Tensor:
    """Return the factors, 0 among them, by which the weights were multiplied after the softmax."""
    positive = attention.weights > 0
    return attention.applied_weights[positive] / attention.weights[positive]


def _proof_of_wrong_factor(factors: Tensor, p: float | None) -> str:
    """Describe how dropout scales the weights; return "" if it keeps a row's expected sum.

    Args:
        factors: by which each weight was multiplied, 0 where it was dropped.
        p: the dropout probability; None: it is estimated.
    """
    kept = factors[factors != 0]
    if not len(kept) or not torch.allclose(kept, kept[:1].expand_as(kept), rtol=1e-4):
        return ""  # rows were divided by their sums
    factor, share = kept[0].item(), len(kept) / len(factors)
    keep, uncertainty = share, TOLERANCE
    if p is None:
        uncertainty += SIGMAS * (share * (1 - share) / len(factors)) ** 0.5 / share
    else:
        keep = 1 - p
    if keep == 0 or abs(factor * keep - 1) <= uncertainty:
        return ""
    return (
        f"In training, {share:.3g} of the weights are kept and multiplied by {factor:.3g}, so a row's expected sum is "
        f"{factor * keep:.3g}. Multiplied by 1 / (1 − p) = {1 / keep:.3g}, it would be 1."
    )


def _last_scaling(attention: RecordedAttention, step: Step) -> Step:
    """Return the last multiplication after a dropout, where its factor becomes wrong; else the dropout itself."""
    scalings = [
        later
        for later in attention.chain
        if later.index > step.index
        and later is not attention.context_step
        and later.operation.strip("_") in SCALINGS
    ]
    return scalings[-1] if scalings else step
