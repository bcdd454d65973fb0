"""Probe: sequences that lie one after the other in one row, with their lengths beside it, do not see each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.resizing import Resized, adds_up
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.forwarding import call_omitting
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding


@probe("batch-mixed")
def packed_sequences(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change the first token of each sequence but the first: no output of another sequence may change."""
    (B, T), subject = evidence.inputs.sizes, evidence.subject
    found = _lengths(subject.convention.constants, T)
    if B != 1 or found is None:
        return
    name, lengths = found
    sequence = torch.arange(len(lengths)).repeat_interleave(lengths)
    influence = evidence.influence[0, :, 0] & (sequence[:, None] != sequence[None, :])
    if not influence.any():
        yield Fact("packed", f"the sequences of {name} do not see each other")
        return
    i, j = influence.nonzero()[0].tolist()
    attention = evidence.attentions[0].context_step if evidence.attentions else None
    yield Finding(
        "batch-mixed",
        "bug",
        f"By {name} there are {len(lengths)} sequences in a row. Changing token {j}, of sequence {sequence[j]}, "
        f"changes output {i}, of sequence {sequence[i]}.",
        f"T = {T}, lengths {', '.join(map(str, lengths.tolist()))}",
        call_omitting(subject.target.callee, name, names.MASKS) or SourceLine.of(attention),
    )


def _lengths(constants: Mapping[str, Any], T: int) -> tuple[str, Tensor] | None:
    """Return the argument of an example that says how long the sequences in a row are, and the lengths."""
    for name, constant in constants.items():
        value = constant.value if isinstance(constant, Resized) else None
        if isinstance(value, Tensor) and adds_up(value, T):
            return name, value.diff() if value[0] == 0 else value
    return None
