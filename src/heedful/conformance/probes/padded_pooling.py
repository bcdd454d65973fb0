"""The line at which the padding of a sequence is pooled with its real tokens, whose rows it has not changed before."""

from __future__ import annotations

from torch import Tensor

from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.dataflow import read_by, steps_from_tokens
from heedful.conformance.recording.differences import changed_entries
from heedful.conformance.recording.source import SourceLine


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
    run, other = subject.record(evidence.inputs, keep=keep), subject.record(inputs, keep=keep)
    steps = run.trace.steps
    from_tokens = steps_from_tokens(steps)
    for step in steps:
        changed = changed_entries(run, other, step)
        if step.index not in from_tokens or T in step.shape or changed is None or not changed.any():
            continue
        read = [it.step for it in read_by(step) if it.step in from_tokens and it.step is not None]
        before = [changed_entries(run, other, steps[index]) for index in read]
        kept = bool(before) and all(_are_only_padding(it, keep) for it in before)
        return SourceLine.of(step) if kept else None
    return None


def _are_only_padding(changed: Tensor | None, keep: Tensor) -> bool:
    """Check whether a result has one axis of sequences and one of tokens, and changed at padded tokens alone."""
    shape = () if changed is None else tuple(changed.shape)
    axes = [[axis for axis, size in enumerate(shape) if size == n] for n in keep.shape]
    if changed is None or any(len(it) != 1 for it in axes):
        return False
    return not changed.movedim([axes[0][0], axes[1][0]], [0, 1])[keep].any()
