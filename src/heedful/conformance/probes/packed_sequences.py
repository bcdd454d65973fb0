"""Probe: sequences that lie one after the other in one row, with their lengths beside it, do not see each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.convention import output_candidates
from heedful.conformance.calling.resizing import Resized, adds_up
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import SOFTMAXES
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.forwarding import call_omitting
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding

IDS: tuple[str, ...] = ("batch", "batch_idx", "batch_index", "batch_ids", "graph_ids")
"""Arguments that hold, by convention, the number of the sequence or graph of each token."""

PACKED_IDS: re.Pattern[str] = re.compile(
    r"(block|doc|document|segment|seq|sequence|sample)_(ids?|index)"
)
"""Arguments that do so in code that speaks of packing."""


@probe("batch-mixed", "mask-inverted")
def packed_sequences(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change each token in turn: no output of another sequence may change."""
    (_, T), subject = evidence.inputs.sizes, evidence.subject
    found = _sequences(evidence)
    if found is None:
        return
    name, sequence = found
    if subject.convention.pooled:
        yield from _mixed_in_pools(evidence, name, sequence)
        return
    influence, same = evidence.influence[0, :, 0], sequence[:, None] == sequence
    leaks, own = influence & ~same, influence & same & ~torch.eye(T, dtype=torch.bool)
    if not leaks.any():
        yield Fact("packed", f"the sequences of {name} do not see each other")
        return
    i, j = leaks.nonzero()[0].tolist()
    attention = evidence.attentions[0].context_step if evidence.attentions else None
    yield Finding(
        "batch-mixed" if own.any() else "mask-inverted",
        "bug",
        f"By {name} there are {len(sequence.unique())} sequences in a row. Changing token {j}, of sequence "
        f"{sequence[j]}, changes output {i}, of sequence {sequence[i]}.",
        f"T = {T}, lengths {', '.join(map(str, sequence.bincount().tolist()))}",
        call_omitting(subject.target.callee, name, names.MASKS) or SourceLine.of(attention),
    )


def _mixed_in_pools(evidence: Evidence, name: str, sequence: Tensor) -> Iterator[Finding]:
    """Change a token of the last sequence: no row of the result of another sequence may change."""
    inputs, subject, last = evidence.inputs, evidence.subject, int(sequence.max())
    changed = inputs.changed(0, int((sequence == last).nonzero()[0]))
    before, after = (_rows_of_sequences(subject, it, last + 1) for it in (inputs, changed))
    if before is None or after is None:
        return
    others = differing_entries(before, after)[:last].flatten(1).any(1)
    if others.any():
        softmax = (step for step in evidence.baseline.trace if step.operation in SOFTMAXES)
        yield Finding(
            "batch-mixed",
            "bug",
            f"By {name} there are {last + 1} sequences in a row. Changing a token of sequence {last} changes the "
            f"result of sequence {int(others.nonzero()[0])}.",
            f"T = {len(sequence)}, lengths {', '.join(map(str, sequence.bincount().tolist()))}",
            SourceLine.of(next(softmax, None)),
        )


def _rows_of_sequences(subject: Subject, inputs: Inputs, count: int) -> Tensor | None:
    """Return the first tensor in a result that has a row for each sequence; None if there is none."""
    with torch.no_grad(), subject.isolated():
        result = subject.trace(subject.arguments(inputs)).result
    tensors = (it for it in output_candidates(result) if it.shape[:1] == (count,))
    return next((it.detach() for it in tensors if it.dim() > 1), None)


def _sequences(evidence: Evidence) -> tuple[str, Tensor] | None:
    """Return the argument of an example that tells the sequences of a row apart, and those of the first row."""
    (B, T), subject = evidence.inputs.sizes, evidence.subject
    given, packs = subject.arguments(evidence.inputs), "pack" in prose_about(subject.callee)
    for name, constant in subject.convention.constants.items():
        value = constant.value if isinstance(constant, Resized) else None
        if not isinstance(value, Tensor) or value.is_floating_point():
            continue
        if B == 1 and adds_up(value, T):
            lengths = value.diff() if value[0] == 0 else value
            return name, torch.arange(len(lengths)).repeat_interleave(lengths)
        ids, known = given.get(name), name in IDS or (packs and PACKED_IDS.fullmatch(name))
        if known and isinstance(ids, Tensor) and ids.shape in ((B, T), (B * T,)):
            return name, ids.reshape(B, T)[0]
    return None
