"""Probe: sequences that lie one after the other in one row, with their lengths beside it, do not see each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.resizing import Resized, adds_up
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.forwarding import call_omitting
from heedful.conformance.recording.source import SourceLine, prose_about
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
    if found is None or subject.convention.pooled:
        return
    name, sequence = found
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
