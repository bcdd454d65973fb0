"""Check that slots of a cache to which no token was written have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.attention import FAINT, RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import masking_step
from heedful.conformance.probes.cache_writes import find_wrong_write
from heedful.conformance.probes.caches import chunk_sizes, describe_chunks
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors, steps_from_projection
from heedful.conformance.recording.differences import changed_entries
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

LARGE_FILL = 1e4  # finite, because a correct target may read unused slots and give them weight 0
MASK_MAKING = ("le", "lt", "ge", "gt", "tril", "triu", "or", "__or__")


@probe("cache-garbage-read")
def unused_slots(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Fill the cache with large numbers before the first token. No output may change."""
    subject, inputs = evidence.subject, evidence.inputs
    use = subject.cache_use
    if use is None or subject.fixed_sizes is not None:
        return
    finding = _check_weight_on_empty_slots(evidence)
    if finding is not None:
        yield finding
        return
    if not use.capacity:
        return
    sizes = chunk_sizes(inputs.sizes[1])[0]
    fills = (0.0, LARGE_FILL)
    outputs = [
        attempt(lambda fill=fill: subject.outputs_in_chunks(inputs, sizes, unused=fill))
        for fill in fills
    ]
    if any(isinstance(outcome, Exception) for outcome in outputs):
        return  # the probe "cache" reports it
    if not any(evidence.differs(*pair).any() for pair in zip(*outputs, strict=True)):
        return
    runs = [subject.run_in_chunks(inputs, sizes, unused=fill) for fill in fills]
    for empty, filled, start in zip(*runs, [0, *accumulate(sizes)], strict=False):
        if not evidence.differs(empty.output, filled.output).any():
            continue
        distance = (empty.output - filled.output).abs().max()
        yield Finding(
            "cache-garbage-read",
            "bug",
            f"Filling the unused slots with {LARGE_FILL:.0f} changes the outputs from token {start} on by "
            f"{distance:.3g}.",
            describe_chunks(evidence, sizes),
            _line_reading_slots(PartialRun(filled, evidence.baseline, start), empty),
        )
        return


def _check_weight_on_empty_slots(evidence: Evidence) -> Finding | None:
    """Check that no query gives weight to the empty slots of a cache that is made within the call."""
    for attention in evidence.attentions:
        if (attention.empty_slot_weight > FAINT).any():
            B, T = evidence.inputs.sizes
            return Finding(
                "cache-garbage-read",
                "bug",
                f"Slots to which no token was written get up to {attention.empty_slot_weight.max():.3g} of a query's "
                "weight.",
                f"B = {B}, T = {T}",
                SourceLine.of(_mask_making_step(evidence.baseline, attention)),
            )
    return None


def _mask_making_step(observation: Observation, attention: RecordedAttention) -> Step | None:
    """Return the step that makes the mask of the scores, or else the one that applies it."""
    steps = observation.trace.steps
    applied = masking_step(attention)
    chain = {step.index for step in attention.chain}
    masks = [source.step for source in (applied.inputs if applied else ())]
    behind = {
        index
        for mask in masks
        if mask is not None and mask not in chain
        for index in ancestors(steps, steps[mask])
    }
    making = [steps[index] for index in sorted(behind) if steps[index].operation in MASK_MAKING]
    return making[-1] if making else applied or attention.scores_step


def _line_reading_slots(filled: PartialRun, empty: Observation) -> SourceLine | None:
    """Return the write that misses a slot, the mask that shows empty slots, or the first step that reads one."""
    pairs = zip(find_attentions(filled.part), find_attentions(empty), strict=False)
    for attention, undisturbed in pairs:
        for source in (attention.key_source, attention.value_source):
            write = find_wrong_write(filled, source)
            if write is not None:
                return SourceLine.of(write)
            if (undisturbed.empty_slot_weight > FAINT).any():
                return SourceLine.of(_mask_making_step(empty, undisturbed))
            for step in steps_from_projection(filled.part, source):
                changed = changed_entries(empty, filled.part, step)
                if not step.in_place and changed is not None and changed.any():
                    return SourceLine.of(step)
    return None
