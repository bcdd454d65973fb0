"""Probe: a mask of padding and a mask of queries and keys hide as much together as each of them alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.influence import influences
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fills import FILLING_OPERATIONS
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding


@probe("mask-unused")
def both_masks(evidence: Evidence) -> Iterator[Finding]:
    """Give both masks in one call: neither padding nor a later token that a causal mask hides has an effect."""
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    padding, attention_mask = subject.padding, subject.attention_mask
    if padding is None or attention_mask is None or padding.name == attention_mask.name:
        return
    if not (padding.hides and attention_mask.hides) or T < 3 or subject.convention.pooled:
        return
    keep = torch.ones(B, T, dtype=torch.bool)
    keep[:, 1] = False  # a token that later queries would see
    past = torch.ones(T, T, dtype=torch.bool).tril()

    reaches = partial(influences, subject, evidence.inputs)
    for mask, other, alone, token, row in (
        (padding, attention_mask, {"keep": keep}, 1, T - 1),
        (attention_mask, padding, {"attend": past}, T - 1, 0),
    ):
        hidden = reaches(token, (0, row), **alone) is False
        if hidden and reaches(token, (0, row), keep=keep, attend=past):
            together = attempt(lambda: subject.record(evidence.inputs, keep=keep, attend=past))
            yield Finding(
                "mask-unused",
                "bug",
                f"With {other.name} beside it, {mask.name} hides nothing: changing token {token}, which it hides, "
                f"changes output {row}. Alone, it hides the token.",
                f"B = {B}, T = {T}",
                _last_fill(together),
                f"Apply {mask.name} and {other.name} one after the other, to the scores that the first one has masked.",
            )
            return


def _last_fill(run: Observation | Exception) -> SourceLine | None:
    """Return the line that masks scores last, from which the other mask is missing."""
    steps = [] if isinstance(run, Exception) else run.trace.steps
    return SourceLine.of(
        next((it for it in reversed(steps) if it.operation in FILLING_OPERATIONS), None)
    )
