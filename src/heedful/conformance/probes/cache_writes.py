"""Find the step that writes wrong rows into a cache, or writes them into the wrong slots."""

from __future__ import annotations

from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.recording.dataflow import is_projection, steps_from_projection
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.observation import Source, Step


def find_wrong_write(partial: PartialRun, source: Source) -> Step | None:
    """Return the wrong write into a cache on the way to an operand of the attention; None if there is none.

    Args:
        partial: a call with a cache, beside the run on all tokens.
        source: where its keys or values come from.
    """
    trace = partial.part.trace
    steps = steps_from_projection(partial.part, source)
    bypassing = _steps_bypassing_cache(partial.part, source)
    # If new rows also reach the operand directly, a write must use them too.
    bypassed = any(is_projection(step) for step in steps if step.index in bypassing)
    for write in (step for step in steps if step.in_place):
        written = [trace[source.step] for source in write.inputs if source.step is not None]
        writes_other_rows = bypassed and not any(step.index in bypassing for step in written)
        if writes_other_rows or not all(_holds_rows(partial, write, step) for step in written):
            return write
    return None


def _steps_bypassing_cache(observation: Observation, source: Source) -> set[int]:
    """Return the indices of the steps that reach an operand without passing through a write."""
    indices: set[int] = set()
    pending = [source.step]
    while pending:
        index = pending.pop()
        if index is None or index in indices or observation.trace[index].in_place:
            continue
        indices.add(index)
        pending += [parent.step for parent in observation.trace[index].inputs]
    return indices


def _holds_rows(partial: PartialRun, write: Step, written: Step) -> bool:
    """Check that after a write the cache starts with all rows so far; True if this cannot be checked."""
    matching = partial.matching_step(written)
    contents = tensor_of(write)
    expected = None if matching is None else tensor_of(matching)
    T = partial.whole.inputs.sizes[1]
    if expected is None or contents is None:
        return True
    if expected.dim() != contents.dim() or T not in expected.shape:
        return True
    axis = expected.shape.index(T)
    if contents.shape[axis] < partial.stop or written.shape[axis] != partial.count:
        return True
    contents, expected = (tensor.narrow(axis, 0, partial.stop) for tensor in (contents, expected))
    contents = contents[: len(expected)]  # the cache may have room for more sequences
    return contents.shape != expected.shape or not differing_entries(contents, expected).any()
