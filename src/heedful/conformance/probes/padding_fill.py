"""Check that padded keys stay hidden however large the scores are."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.mask_fill import find_weak_fill
from heedful.conformance.probes.padded_batch import padded_run, padded_subject, real_tokens
from heedful.conformance.probes.padding_causes import line_lowering_scores
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Fact, Finding


@probe("mask-fill-too-small")
def padding_fill(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Scale up queries and keys until scores exceed a finite fill. Padded keys must stay hidden."""
    subject = padded_subject(evidence)
    if subject is None:
        return
    keep, padded = real_tokens(evidence, "right"), padded_run(evidence, subject, "right")
    yield from find_weak_fill(
        padded,
        lambda inputs: subject.record(inputs, keep=keep),
        lambda attention, hidden: line_lowering_scores(padded, attention, hidden),
    )
