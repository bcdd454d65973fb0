"""Check that a cache also works for a batch with padding on the left."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.mask_forms import LENGTHS
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.cache_causes import find_cache_cause
from heedful.conformance.probes.caches import check_chunks, describe_chunks
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Fact, Finding


@probe("left-padding-positions", "cache-mismatch")
def padded_cache(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run a left-padded batch with a cache. Real tokens must get the outputs of one call on all tokens."""
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    if not _takes_cache_and_left_padding(subject) or T < 4:
        return
    sizes = (T - 1, 1)
    keep = torch.arange(T) >= torch.arange(B).clamp_max(T - 2)[:, None]
    whole = attempt(lambda: subject.record(evidence.inputs, keep=keep))
    parts = attempt(lambda: subject.run_in_chunks(evidence.inputs, sizes, keep=keep))
    if isinstance(whole, Exception) or isinstance(parts, Exception):
        return  # the target takes no such mask together with a cache
    last = parts[1]
    expected = whole.output[:, -1:]
    if not evidence.differs(last.output, expected).any() or check_chunks(evidence, sizes):
        return
    name, reason, line = find_cache_cause(evidence, PartialRun(last, whole, T - 1))
    distance = (last.output - expected).abs().max()
    proof = f"{reason} Only with padding on the left, a cache changes the last outputs by {distance:.3g}."
    yield Finding(
        "left-padding-positions" if name == "rotary-offset" else "cache-mismatch",
        "bug",
        proof.strip(),
        describe_chunks(evidence, sizes),
        line,
    )


def _takes_cache_and_left_padding(subject: Subject) -> bool:
    padding, attention_mask = subject.padding, subject.attention_mask
    if subject.cache_use is None or padding is None or padding.form == LENGTHS:
        return False
    return attention_mask is None or attention_mask.name != padding.name
