"""Whether a target draws noise even in eval mode, so that its outputs depend on the random numbers."""

from __future__ import annotations

from heedful.conformance.evidence.evidence import Evidence

NORMAL: tuple[str, ...] = ("randn", "randn_like", "normal", "normal_")
INDICES: tuple[str, ...] = ("randint", "randint_like", "randperm", "multinomial")


def draws_noise(evidence: Evidence) -> bool:
    """Check whether a run draws normal numbers or indices.

    The first state of slots is drawn (Locatello et al. 2020), and so are the keys that sparse attention samples (Zhou
    et al. 2021).
    """
    return any(step.operation in (*NORMAL, *INDICES) for step in evidence.baseline.trace)
