"""Probe: a mask that the target makes itself leaves every query a key."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import mask_building_line, masking_step
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.call_sites import call_site
from heedful.conformance.recording.dataflow import VIEWS, ancestors, steps_from_tokens
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

LOW = -1e4
"""A score below this is hidden."""
COMPARING: tuple[str, ...] = ("sub", "rsub", "eq", "ne", "lt", "le", "gt", "ge")


@probe("self-hidden")
def empty_rows(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Look for queries all of whose scores are lowered, by a mask that depends on no input, while others see keys.

    Their weights may be set to 0 after the softmax. A query that is left with one key sees that one, as a token sees
    itself if there is no other (Kitaev et al. 2020).
    """
    for attention in evidence.attentions:
        shape = attention.logits.shape
        if attention.softmax_step is None or attention.weights.shape != shape:
            continue
        lowered = (attention.logits.amax(-1) < LOW) & (attention.visible.sum(-1) > 1)
        masks = _masks(evidence, attention)
        if not lowered.any() or lowered.all() or not masks:
            continue
        row = int(lowered.nonzero()[0, 1])
        proof = (
            f"Query {row} sees no key: the target's own mask lowers all of its {shape[2]} scores, so that the softmax "
            "weights hidden keys."
        )
        line = _line_of_keys(evidence, masks) or mask_building_line(evidence, attention)
        yield Finding("self-hidden", "bug", proof, f"{shape[1]} queries, {shape[2]} keys", line)
        return


def _masks(evidence: Evidence, attention: RecordedAttention) -> list[Step]:
    """Return the steps that make what lowers the scores, in order; none if an input takes part in them."""
    steps, applied = evidence.baseline.trace.steps, masking_step(attention)
    chain = {step.index for step in attention.chain}
    beside = [
        it.step
        for step in ([applied] if applied is not None else attention.chain[1:])
        for it in step.inputs
        if it.step is not None and it.step not in chain
    ]
    from_inputs = steps_from_tokens(steps)
    if from_inputs.intersection(beside):
        return []
    made = {index for it in beside for index in ancestors(steps, steps[it])} - from_inputs
    return [steps[index] for index in sorted(made)]


def _line_of_keys(evidence: Evidence, masks: list[Step]) -> SourceLine | None:
    """Return the line that numbers the keys which a mask compares with queries; it has no number for some queries."""
    steps = evidence.baseline.trace.steps
    for step in masks:
        sides = [steps[it.step] for it in step.inputs if it.step is not None]
        if step.operation not in COMPARING or len(sides) != 2:
            continue
        keys = next((it for it in sides if _is_row(it)), None)
        if keys is None or not any(_is_column(it) for it in sides):
            continue
        while keys.operation in VIEWS and keys.inputs and keys.function == step.function:
            source = keys.inputs[0].step
            if source is None:
                break
            keys = steps[source]
        outside = keys.function != step.function
        return (call_site(evidence.baseline, keys) if outside else None) or SourceLine.of(keys)
    return None


def _is_row(step: Step) -> bool:
    return len(step.shape) > 1 and step.shape[-2] == 1 and step.shape[-1] > 1


def _is_column(step: Step) -> bool:
    return len(step.shape) > 1 and step.shape[-1] == 1 and step.shape[-2] > 1
