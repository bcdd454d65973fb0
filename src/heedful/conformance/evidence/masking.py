"""The steps and source lines that build and apply an attention's mask."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import FAINT, RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine, names_in, tree_of
from heedful.observation import Source, Step

BUILDING_OPERATIONS: tuple[str, ...] = ("triu", "tril", "triu_", "tril_", "ge", "gt", "le", "lt")
APPLYING_OPERATIONS: tuple[str, ...] = (
    *("masked_fill", "masked_fill_", "where", "setitem", "add", "iadd", "add_", "mul", "imul"),
)
# An unused result of these is a mask without effect; other operations have unused results for many reasons.
MASK_OPERATIONS: tuple[str, ...] = (
    *("masked_fill", "where", "add", "mul", "triu", "tril", "sub", "and"),
)
MARGIN = 100  # a score this far below the median of the visible ones is masked


class MaskDefect(NamedTuple):
    """A defect of a mask.

    Attributes:
        name: the finding's.
        explanation: one sentence, or "".
        place: the line to blame, if it is known.
    """

    name: str
    explanation: str
    place: SourceLine | None


def unused_masking(observation: Observation) -> MaskDefect | None:
    """Return the defect of a mask that is built or applied, but whose result nothing uses."""
    for step in observation.trace:
        if step.unused and step.operation in MASK_OPERATIONS and not _carries_on(step):
            explanation = f"Nothing uses the result of {step.operation}."
            return MaskDefect("mask-unused", explanation, SourceLine.of(step))
    return None


def _carries_on(step: Step) -> bool:
    """Check whether a step's line adds to its own variable, as a loop does, whose last sum nothing needs to use."""
    match tree_of(step.source).body:
        case [ast.Assign(targets=[ast.Name(id=name)], value=value)]:
            return name in names_in([value])
        case _:
            return False


def masking_step(attention: RecordedAttention) -> Step | None:
    """Return the step that hides scores: the first after which all hidden scores are very small or 0.

    PyTorch's fused attention is one step, which also applies the mask.
    """
    if attention.fused:
        return attention.context_step
    hidden = attention.weights < FAINT  # before dropout, which hides no keys
    if not hidden.any():
        hidden = ~attention.visible
    for step in attention.chain[1:]:
        scores = scores_after(step, attention)
        if scores is not None and _are_masked(scores, hidden):
            return step
    return next((step for step in attention.chain if step.operation in APPLYING_OPERATIONS), None)


def scores_after(step: Step, attention: RecordedAttention) -> Tensor | None:
    """Return a step's value as (L, Tq, Tk), in the order of an attention; None if it has another shape or is a mask."""
    value, weights = tensor_of(step), attention.applied_weights
    if value is None or value.numel() != weights.numel() or value.shape[-2:] != weights.shape[-2:]:
        return None
    if value.dtype is torch.bool:
        return None
    return value.reshape(weights.shape)


def _are_masked(scores: Tensor, hidden: Tensor) -> bool:
    """Check whether there are hidden scores, and all of them are 0 or far below the others."""
    median = scores[~hidden].median() if (~hidden).any() else scores.new_zeros(())
    masked = (scores < median - MARGIN) | (scores == 0)
    return bool(hidden.any() and masked[hidden].all())


def mask_applying_line(attention: RecordedAttention) -> SourceLine | None:
    """Return the source line that applies the mask; that of the softmax if no step does."""
    step = masking_step(attention) or attention.softmax_step or attention.context_step
    return SourceLine.of(step)


def mask_building_line(evidence: Evidence, attention: RecordedAttention) -> SourceLine | None:
    """Return the source line that builds the mask, or the one that applies it."""
    built = _building(evidence, masking_step(attention), attention)
    line = SourceLine.of(built) if isinstance(built, Step) else built
    return line or mask_applying_line(attention)


def mask_helper_line(evidence: Evidence, attention: RecordedAttention) -> SourceLine | None:
    """Return the line that builds the mask in another function than the one that applies it; None without one."""
    applied = masking_step(attention)
    built = _building(evidence, applied, attention)
    if isinstance(built, Step) and applied is not None and built.function != applied.function:
        return SourceLine.of(built)
    return None


def _building(
    evidence: Evidence, applied: Step | None, attention: RecordedAttention
) -> Step | SourceLine | None:
    """Search backwards from a mask's use for the comparison, triangle or attribute that it comes from."""
    chain = {step.index for step in attention.chain}
    inputs = () if applied is None else applied.inputs
    return _origin(evidence, [source for source in inputs if source.step not in chain])


def origin_of_mask(evidence: Evidence, mask: Source) -> SourceLine | None:
    """Return the line of the comparison, triangle or attribute that a mask comes from; None if there is none."""
    found = _origin(evidence, [mask])
    return SourceLine.of(found) if isinstance(found, Step) else found


def _origin(evidence: Evidence, masks: Iterable[Source]) -> Step | SourceLine | None:
    for source in _sources_behind(evidence.baseline, masks):
        value = value_of(evidence.baseline, source)
        if value is not None and value.numel() == 1:
            continue  # the number that hides scores
        if source.kind in ("buffer", "attribute"):
            return attribute_definition(evidence.subject.module, source.name)
        if source.step is not None and _builds(evidence.baseline, source):
            return evidence.baseline.trace[source.step]
    return None


def building_step(observation: Observation, mask: Iterable[Source]) -> Step | None:
    """Return the comparison or the triangle that a mask was computed from; None if there is none."""
    built = (it for it in _sources_behind(observation, mask) if _builds(observation, it))
    return next((observation.trace[it.step] for it in built if it.step is not None), None)


def _builds(observation: Observation, source: Source) -> bool:
    step = None if source.step is None else observation.trace[source.step]
    return step is not None and step.operation in BUILDING_OPERATIONS


def _sources_behind(observation: Observation, start: Iterable[Source]) -> Iterator[Source]:
    """Yield some sources, and those that the steps behind them read, the last ones first."""
    pending = [*start]
    while pending:
        source = pending.pop()
        yield source
        if source.step is not None:
            pending += observation.trace[source.step].inputs
