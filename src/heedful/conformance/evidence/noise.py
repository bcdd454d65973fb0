"""Whether a target draws noise even in eval mode, so that its outputs depend on the random numbers."""

from __future__ import annotations

from heedful.conformance.evidence.evidence import Evidence

NORMAL: tuple[str, ...] = ("randn", "randn_like", "normal", "normal_")


def draws_noise(evidence: Evidence) -> bool:
    """Check whether a run draws normal numbers, as the first state of slots (Locatello et al. 2020)."""
    return any(step.operation in NORMAL for step in evidence.baseline.trace)
