"""The line at which the padding of a sequence is pooled with its real tokens, whose rows it has not changed before."""

from __future__ import annotations

from torch import Tensor

from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.dataflow import read_by, steps_from_tokens
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.observation import Step


def pooling_line(evidence: Evidence, subject: Subject, keep: Tensor) -> SourceLine | None:
    """Return the line that pools padded tokens with real ones; None if padding changes rows of real tokens before.

    Args:
        evidence: The evidence about the target.
        subject: The subject with its padding argument.
        keep: (B, T) Boolean, which tokens are real.
    """
    B, T = keep.shape
    if not subject.convention.pooled or B == T:
        return None
    inputs = evidence.inputs
    for b, t in (~keep).nonzero().tolist():
        inputs = inputs.changed(b, t)
    steps = subject.record(evidence.inputs, keep=keep).trace.steps
    others = subject.record(inputs, keep=keep).trace.steps
    from_tokens = steps_from_tokens(steps)
    for step, other in zip(steps, others, strict=False):
        if step.index in from_tokens and T not in step.shape and _differ(step, other):
            behind = [it.step for it in read_by(step) if it.step in from_tokens]
            same = (
                _real_rows_agree(steps[it], others[it], keep) for it in behind if it is not None
            )
            return SourceLine.of(step) if behind and all(same) else None
    return None


def _differ(step: Step, other: Step) -> bool:
    one, two = tensor_of(step), tensor_of(other)
    if one is None or two is None or one.shape != two.shape:
        return False
    return bool(differing_entries(one, two).any())


def _real_rows_agree(step: Step, other: Step, keep: Tensor) -> bool:
    """Check whether two results have one axis of sequences and one of tokens, and the same rows of real tokens."""
    B, T = keep.shape
    one, two = tensor_of(step), tensor_of(other)
    if one is None or two is None or one.shape != two.shape:
        return False
    if step.shape.count(B) != 1 or step.shape.count(T) != 1:
        return False
    axes = step.shape.index(B), step.shape.index(T)
    rows, others = (it.movedim(axes, (0, 1))[keep] for it in (one, two))
    return not differing_entries(rows, others).any()
