"""Probe: positions that are added to the tokens belong to the tokens, not to the sequences of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import VIEWS, ancestors, steps_from_tokens
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.observation import Step

ADDITIONS = ("add", "add_", "iadd", "radd")
COUNTING = ("arange", "embedding", "repeat", "repeat_interleave", "index_select", "long", "to")
"""What may be done on the way from a table of positions to the rows that are added, beside views of it."""


@probe("positions-wrong")
def added_positions(evidence: Evidence) -> Iterator[Finding]:
    """Search for rows of a table, chosen by a size alone, that are the same for all tokens of a sequence."""
    B, T = evidence.inputs.sizes
    steps = evidence.baseline.trace.steps
    if min(B, T) < 2 or B == T or evidence.subject.convention.is_image:
        return
    from_tokens = steps_from_tokens(steps)
    for step in (it for it in steps if it.operation in ADDITIONS and len(it.inputs) == 2):
        for index in (it.step for it in step.inputs if it.step is not None):
            made = [steps[it] for it in sorted(ancestors(steps, steps[index]))]
            if index in from_tokens or not _are_rows_of_a_table(made):
                continue
            rows = _rows(tensor_of(steps[index]), step.shape, B, T)
            if rows is None or differing_entries(rows, rows[:, :1].expand_as(rows)).any():
                continue
            of_sequences = bool(differing_entries(rows, rows[:1].expand_as(rows)).any())
            if of_sequences or _depends_on_length(evidence, index):
                yield _finding(evidence, made, of_sequences)
                return


def _finding(evidence: Evidence, made: Sequence[Step], of_sequences: bool) -> Finding:
    """Report rows that some steps make; the first of them that counts, or else the first, is the line to edit."""
    B, T = evidence.inputs.sizes
    proof = (
        f"All {T} tokens of a sequence get the same row of the table of positions, and each of the {B} sequences gets "
        "another one: the rows are counted along the batch."
        if of_sequences
        else f"All {T} tokens get one and the same row of the table of positions, which the number of tokens chooses."
    )
    counted = next((it for it in made if it.operation == "arange"), made[0])
    level = "suspicious" if evidence.subject.convention.is_unsure else "bug"
    return Finding("positions-wrong", level, proof, f"B = {B}, T = {T}", SourceLine.of(counted))


def _are_rows_of_a_table(made: Sequence[Step]) -> bool:
    """Check whether steps choose rows of a table by sizes alone, and compute nothing."""
    reads = [it for step in made for it in step.inputs if it.kind != "step"]
    plain = all(it.operation in VIEWS or it.operation in COUNTING for it in made)
    named = (it.name.rpartition(".")[2] for it in reads)
    of_length = any("len" in name for name in named)  # the length itself is told to the tokens
    return plain and bool(reads) and not of_length and all(it.kind != "input" for it in reads)


def _rows(added: Tensor | None, shape: tuple[int, ...], B: int, T: int) -> Tensor | None:
    """Return what is added to each token, (B, T, …); None if it was not kept, or the sum lacks one of these axes.

    Args:
        added: A tensor that is broadcast to the shape of the sum.
        shape: That shape; its last axis holds features.
        B: The number of sequences.
        T: The number of tokens.
    """
    axes = [[axis for axis, size in enumerate(shape[:-1]) if size == n] for n in (B, T)]
    if added is None or any(len(it) != 1 for it in axes):
        return None
    return added.expand(shape).movedim([axes[0][0], axes[1][0]], [0, 1])


def _depends_on_length(evidence: Evidence, index: int) -> bool:
    """Check whether fewer tokens get other rows by the step with an index."""
    _, T = evidence.inputs.sizes
    if evidence.subject.fixed_sizes is not None or T < 3:
        return False
    shorter = evidence.subject.record(evidence.inputs.tokens(0, T - 1)).trace.steps
    before = tensor_of(evidence.baseline.trace[index])
    after = tensor_of(shorter[index]) if index < len(shorter) else None
    if before is None or after is None or before.shape != after.shape:
        return False
    return bool(differing_entries(before, after).any())
