"""Find out why padding changes the outputs of real tokens: a weak fill, a late mask, or a wrong dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fills import FILLING_OPERATIONS
from heedful.conformance.evidence.fused import fused_arguments
from heedful.conformance.evidence.masking import MASK_OPERATIONS, MaskDefect, unused_masking
from heedful.conformance.probes.padded_batch import line_applying_argument, mask_sources
from heedful.conformance.probes.weighting_causes import (
    AFTERWARDS,
    describe_weak_fill,
    is_hidden_weight,
    scaling_step,
    weighting_cause,
)
from heedful.conformance.recording.dataflow import ancestors, steps_from_argument
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.observation import Source

RESHAPING = (
    *("getitem", "unsqueeze", "view", "reshape", "expand", "repeat", "repeat_interleave", "tile"),
    *("transpose", "permute", "mT", "cat", "concat", "stack", "flatten", "roll"),
)

COPYING = ("repeat", "repeat_interleave", "tile", "expand", "cat", "concat", "stack")
"""Operations that decide which rows of a mask belong to which sequence, whatever views follow."""


def find_padding_cause(
    evidence: Evidence, subject: Subject, padded: Observation, keep: Tensor, b: int
) -> MaskDefect:
    """Return the name of the finding, a reason ("" if none is known) and the line to blame.

    Args:
        evidence: the evidence without padding.
        subject: the subject with its padding argument.
        padded: a recorded run on the padded batch.
        keep: (B, T) Boolean, which tokens are real.
        b: the sequence whose real tokens change.
    """
    assert subject.padding is not None
    line = line_applying_argument(padded, subject.padding)
    unused = _unused_mask(padded, subject.padding.name)
    if unused is not None:
        return unused
    unpadded = subject.record(evidence.inputs, keep=torch.ones_like(keep))
    for index, (attention, without) in enumerate(
        zip(find_attentions(padded), find_attentions(unpadded), strict=False)
    ):
        rows = rows_of_entries(evidence, index, attention)
        if rows is None or attention.applied_weights.shape[2] != keep.shape[1]:
            continue
        if not len(rows[b]) or attention.logits.shape != without.logits.shape:
            continue  # an attention of other sequences alone, or of real tokens alone
        cause = (
            _check_fill(padded, attention, without, rows[b], keep[b])
            or _check_masked_after_softmax(attention, rows[b], keep[b])
            or _check_broadcast(padded, attention, without, rows, keep, b, line)
            or _check_given_no_mask(padded, attention, rows[b], keep[b])
        )
        if cause is not None:
            return cause
    cause = (
        weighting_cause(padded, unpadded, keep[b], b)
        or unused_masking(padded)
        or _check_other_padding(evidence, subject, padded, keep, b)
    )
    return cause or MaskDefect("padding-leak", "", line)


def _unused_mask(padded: Observation, argument: str) -> MaskDefect | None:
    """Return the defect of a variable that is computed from the padding argument, and that nothing uses."""
    made = steps_from_argument(padded.trace.steps, argument)
    for step in padded.trace:
        assigned = "mask" in step.name and "·" not in step.name
        if step.unused and assigned and step.index in made and step.operation in MASK_OPERATIONS:
            reason = f"Nothing uses {step.name!r}, which is computed from {argument}."
            return MaskDefect("mask-unused", reason, SourceLine.of(step))
    return None


def rows_of_entries(
    evidence: Evidence, index: int, attention: RecordedAttention
) -> list[Tensor] | None:
    """Return which of the attention's L rows belong to each batch entry; None if that is unknown."""
    if index >= len(evidence.attentions):
        return None
    baseline = evidence.attentions[index]
    if len(baseline.applied_weights) != len(attention.applied_weights):
        return None
    return evidence.rows_of_entries(index)


def _check_fill(
    padded: Observation,
    attention: RecordedAttention,
    without: RecordedAttention,
    rows: Tensor,
    keep: Tensor,
) -> MaskDefect | None:
    """Check whether padded keys' scores are set to, or lowered by, a number that leaves them weight."""
    reason = _describe_weak_fill(attention, without, rows, keep)
    if not reason:
        return None
    hidden = torch.zeros_like(attention.visible)
    hidden[rows] = _real_queries(attention, keep)[:, None] & ~keep & (without.weights[rows] > 0)
    line = line_lowering_scores(padded, attention, hidden)
    return MaskDefect("mask-fill-too-small", reason, line)


def _real_queries(attention: RecordedAttention, keep: Tensor) -> Tensor:
    """Return which queries are those of real tokens, (Tq,) Boolean: all if they belong to another sequence."""
    Tq = attention.applied_weights.shape[1]
    return keep if Tq == len(keep) else torch.ones(Tq, dtype=torch.bool)


def _describe_weak_fill(
    attention: RecordedAttention, without: RecordedAttention, rows: Tensor, keep: Tensor
) -> str:
    real = _real_queries(attention, keep)
    logits, before, weights = (
        tensor[rows][:, real] for tensor in (attention.logits, without.logits, attention.weights)
    )
    return describe_weak_fill(logits, before, weights, keep)


def line_lowering_scores(
    padded: Observation, attention: RecordedAttention, hidden: Tensor
) -> SourceLine | None:
    """Return the line at which hidden scores get their final value, or that makes the fused attention's mask.

    Args:
        padded: the recorded run.
        attention: one of its attentions.
        hidden: (L, Tq, Tk) Boolean, the hidden scores.
    """
    if attention.fused:
        mask = fused_arguments(attention.context_step)["attn_mask"]
        made = mask.step if isinstance(mask, Source) else None
        return SourceLine.of(attention.context_step if made is None else padded.trace[made])
    final = attention.logits[hidden]
    for step in attention.chain:
        value = tensor_of(step)
        if value is None or value.numel() != hidden.numel():
            continue
        scores = value.reshape(hidden.shape)[hidden]
        if (scores == scores[0]).all() or torch.equal(scores, final):
            return SourceLine.of(scaling_step(padded, attention.chain, step) or step)
    # In another layout, such as one with the heads last, no entry says more than the operation.
    filling = (step for step in attention.chain[1:] if step.operation in FILLING_OPERATIONS)
    return SourceLine.of(next(filling, None))


def _check_masked_after_softmax(
    attention: RecordedAttention, rows: Tensor, keep: Tensor
) -> MaskDefect | None:
    """Check whether padded keys take part in the softmax and are hidden only afterwards."""

    def padded_keys(tensor: Tensor) -> Tensor:
        return tensor[rows][:, _real_queries(attention, keep)][:, :, ~keep]

    softmax, shape = attention.softmax_step, attention.applied_weights.shape
    if softmax is None or not is_hidden_weight(padded_keys(attention.applied_weights)):
        return None
    if not padded_keys(attention.weights).any():
        return None
    for step in attention.chain:
        value = tensor_of(step)
        if value is None or value.numel() != shape.numel() or step.index <= softmax.index:
            continue
        if is_hidden_weight(padded_keys(value.reshape(shape))):
            return MaskDefect("mask-after-softmax", AFTERWARDS, SourceLine.of(step))
    return None


def _check_given_no_mask(
    padded: Observation, attention: RecordedAttention, rows: Tensor, keep: Tensor
) -> MaskDefect | None:
    """Check whether PyTorch's fused attention gets no mask, so that real queries see padded keys."""
    if not attention.fused or isinstance(
        fused_arguments(attention.context_step)["attn_mask"], Source
    ):
        return None
    real = _real_queries(attention, keep)
    if not attention.applied_weights[rows][:, real][:, :, ~keep].any():
        return None
    reason = f"{attention.context_step.operation} gets no mask."
    made = [step for step in padded.trace if step.unused and step.operation in RESHAPING]
    name = "mask-unused" if made else "padding-leak"
    if made:
        reason = f"Nothing uses {made[-1].name.partition('·')[0]!r}: {reason}"
    return MaskDefect(name, reason, SourceLine.of(attention.context_step))


def _check_broadcast(
    padded: Observation,
    attention: RecordedAttention,
    without: RecordedAttention,
    rows: Sequence[Tensor],
    keep: Tensor,
    b: int,
    line: SourceLine | None,
) -> MaskDefect | None:
    """Check whether the mask hides rows instead of columns, or uses another sequence's padding."""
    line = _reshaping_line(padded, attention) or line
    visible = ~_hidden_scores(without)[rows[b]]
    hidden = _hidden_scores(attention)[rows[b]] & visible
    real, padding = _real_queries(attention, keep[b]), ~keep[b]
    hides_no_key = visible[:, real][:, :, padding].any() and not hidden[:, real].any()
    if hides_no_key and hidden[:, ~real].any():
        reason = (
            "The mask hides padded queries and no keys: it is broadcast along the wrong dimension."
        )
        return MaskDefect("mask-broadcast", reason, line)
    for head_hidden, head_visible in zip(hidden[:, real], visible[:, real], strict=True):
        if not head_hidden.any() or torch.equal(head_hidden, head_visible & padding):
            continue
        for other in range(len(keep)):
            if torch.equal(head_hidden, head_visible & ~keep[other]):
                reason = f"Sequence {b} is masked by the padding of sequence {other}."
                copying = _reshaping_line(padded, attention, COPYING)
                return MaskDefect("mask-broadcast", reason, copying or line)
    return None


def _check_other_padding(
    evidence: Evidence, subject: Subject, padded: Observation, keep: Tensor, b: int
) -> MaskDefect | None:
    """Check whether the padding of another sequence changes the outputs of a sequence, where no tokens of others do."""
    sequences = range(len(keep))
    if any(evidence.influence[one, :, c].any() for one in sequences for c in sequences if c != one):
        return None
    for other in (c for c in sequences if c != b):
        changed = keep.clone()
        changed[other] = True
        output = subject.run(evidence.inputs, keep=changed).detach()
        if (evidence.differs(output, padded.output)[b] & keep[b]).any():
            reason = f"Sequence {b} is masked by the padding of sequence {other}."
            return MaskDefect("mask-broadcast", reason, _line_reshaping_argument(padded, subject))
    return None


def _line_reshaping_argument(padded: Observation, subject: Subject) -> SourceLine | None:
    """Return the last line that gives the padding mask other axes, before anything else meets it."""
    assert subject.padding is not None
    masks: set[int] = set()
    for step in padded.trace:
        own = [it.step in masks or it.name == subject.padding.name for it in step.inputs]
        if own and all(own):
            masks.add(step.index)
    reshaping = [index for index in masks if padded.trace[index].operation in RESHAPING]
    return SourceLine.of(padded.trace[max(reshaping)]) if reshaping else None


def _reshaping_line(
    padded: Observation, attention: RecordedAttention, operations: Sequence[str] = RESHAPING
) -> SourceLine | None:
    """Return the last line that gives a mask other axes, by one of some operations, before it meets the scores."""
    steps, chain = padded.trace.steps, {link.index for link in attention.chain}
    masks = [index for it in mask_sources(attention) if (index := it.step) is not None]
    behind = {
        index for mask in masks if mask not in chain for index in ancestors(steps, steps[mask])
    }
    reshaping = [index for index in behind - chain if steps[index].operation in operations]
    return SourceLine.of(steps[max(reshaping)]) if reshaping else None


def _hidden_scores(attention: RecordedAttention) -> Tensor:
    """Return which scores a mask has replaced, (L, Tq, Tk) Boolean, even if it replaced the whole row."""
    usual = attention.scores.abs().max() * 2 + 100
    return (attention.logits < -usual) | attention.logits.isnan()
