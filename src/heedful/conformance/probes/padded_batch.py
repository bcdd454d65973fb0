"""The padded batch that the probes of padding run: which tokens are real, and what hiding the rest does."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.mask_forms import AFTER_FIRST, LENGTHS, MaskArgument
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence, once
from heedful.conformance.evidence.fused import fused_arguments
from heedful.conformance.recording.dataflow import ancestors, steps_of_places
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.observation import Source, Step

PADDING_COUNTS, FEW_PADDING_COUNTS = (2, 3, 5), (1, 2, 3)
PLACES = ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "getitem")
"""Operations whose integers may tell the last token of each sequence."""
SIZES = (3, 5)  # B and T of a call that shows what a target takes from a mask


def padding_counts(T: int) -> tuple[int, ...]:
    """Return how many of the T tokens of each sequence are padding."""
    return PADDING_COUNTS if max(PADDING_COUNTS) < T else FEW_PADDING_COUNTS


def real_tokens(evidence: Evidence, side: str) -> Tensor:
    """Return which tokens are real, (B, T) Boolean: all but the padding on the "left" or "right"."""
    _, T = evidence.inputs.sizes
    keep = torch.arange(T) < T - torch.tensor(padding_counts(T))[:, None]
    return keep.flip(1) if side == "left" else keep


@once
def padded_subject(evidence: Evidence) -> Subject | None:
    """Return the subject, with the polarity that its padding argument declares; None if it takes no padding."""
    subject = evidence.subject
    argument = subject.padding
    if argument is None or not takes_padding(evidence):
        return None
    if argument.declared is None or argument.declared == argument.true_keeps:
        return subject
    return replace(subject, padding=replace(argument, true_keeps=argument.declared))


def takes_padding(evidence: Evidence) -> bool:
    """Return True if the sample is large enough for the padding."""
    B, T = evidence.inputs.sizes
    return len(padding_counts(T)) == B and max(padding_counts(T)) < T


@once
def padded_run(evidence: Evidence, subject: Subject, side: str) -> Observation:
    """Return the run on the sample whose tokens on the "left" or "right" are padding."""
    return subject.record(evidence.inputs, keep=real_tokens(evidence, side))


@once
def padding_sides(evidence: Evidence, subject: Subject) -> tuple[str, ...]:
    """Return the sides that padding may be on.

    It is the right one alone for lengths, also those counted in a mask, and where the first token is always visible.
    """
    assert subject.padding is not None
    first_is_real = subject.padding.form in (LENGTHS, AFTER_FIRST)
    first_is_real = first_is_real or _is_counted(subject, subject.padding)
    return ("right",) if first_is_real else ("right", "left")


def _is_counted(subject: Subject, mask: MaskArgument) -> bool:
    """Check whether a target counts the real tokens in a mask, for a place in a sequence or for nothing else."""
    inputs = subject.draw(*(subject.fixed_sizes or SIZES))
    keep = torch.ones(*inputs.sizes, dtype=torch.bool)
    with torch.no_grad(), subject.isolated():
        steps = subject.trace(subject.arguments(inputs, keep)).steps
    readers = [it.operation for it in steps if reads_argument(it, mask)]
    behind_places = steps_of_places(steps, PLACES)
    sums = (it for it in steps if it.operation == "sum" and it.index in behind_places)
    counts = ({it.index, *ancestors(steps, it)} for it in sums)
    tells_place = any(reads_argument(steps[index], mask) for count in counts for index in count)
    return tells_place or (bool(readers) and {*readers} == {"sum"})


def reads_argument(step: Step, mask: MaskArgument) -> bool:
    """Check whether a step reads an argument itself."""
    return any(source.kind == "input" and source.name == mask.name for source in step.inputs)


def describe_sizes(evidence: Evidence) -> str:
    """Describe the batch for a report."""
    B, T = evidence.inputs.sizes
    return f"B = {B}, T = {T}, padding tokens {', '.join(map(str, padding_counts(T)))}"


@once
def padding_has_effect(evidence: Evidence, subject: Subject) -> bool:
    """Return True if hiding the padding changes any output."""
    keep = real_tokens(evidence, "right")
    hidden, visible = (
        subject.run(evidence.inputs, keep=mask).detach() for mask in (keep, torch.ones_like(keep))
    )
    if hidden.isnan().any() and not visible.isnan().any():
        return True
    return bool(evidence.differs(hidden, visible).any())


@once
def padding_is_inverted(evidence: Evidence, subject: Subject) -> bool:
    """Return True if no real token sees another one, and the padding is seen: by real tokens, or by padding alone.

    The last token of causal attention reaches no other row, but it does reach one row in all.
    """
    side = padding_sides(evidence, subject)[-1]
    keep, inputs = real_tokens(evidence, side), evidence.inputs
    output = subject.run(inputs, keep=keep).detach()
    b, T = 1, inputs.sizes[1]

    def others_reached_by(t: int) -> Tensor:
        changed = subject.run(inputs.changed(b, t), keep=keep).detach()
        rows = evidence.differs(output, changed)[b]
        rows[t] = False
        return rows

    count = padding_counts(T)[b]
    last = T if subject.convention.pooled else T - 1
    padded, real = (0, range(count, last)) if side == "left" else (T - 1, range(T - count))
    seen = others_reached_by(padded).any()
    return bool(seen) and not any((others_reached_by(t) & keep[b]).any() for t in real)


def masked_rows_spoil(padded: Observation, keep: Tensor) -> bool:
    """Check whether real tokens of a padded batch are NaN because queries of padding see no key."""
    if not padded.output[keep].isnan().any():
        return False
    attentions = find_attentions(padded)
    return any(bool((it.logits == -torch.inf).all(-1).any()) for it in attentions)


def line_applying_argument(observation: Observation, argument: MaskArgument) -> SourceLine | None:
    """Return the first line that turns a mask argument into what meets the scores, or else the first that reads it."""
    steps = observation.trace.steps
    readers = {step.index for step in steps if reads_argument(step, argument)}
    for attention in find_attentions(observation):
        chain = {step.index for step in attention.chain}
        operands = (source.step for source in mask_sources(attention))
        masks = [index for index in operands if index is not None and index not in chain]
        behind = {index for mask in masks for index in ancestors(steps, steps[mask])}
        applied = sorted(behind & readers) + sorted(chain & readers)
        if applied:
            return SourceLine.of(steps[applied[0]])
    return SourceLine.of(steps[min(readers)]) if readers else None


def mask_sources(attention: RecordedAttention) -> list[Source]:
    """Return what meets the scores on their way to the weights."""
    if not attention.fused:
        return [source for step in attention.chain[1:] for source in step.inputs]
    mask = fused_arguments(attention.context_step)["attn_mask"]
    return [mask] if isinstance(mask, Source) else []
