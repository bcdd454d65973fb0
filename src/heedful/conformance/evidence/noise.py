"""Whether a target draws noise even in eval mode, so that its outputs depend on the random numbers."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

from heedful.conformance.evidence.evidence import Evidence

NORMAL: tuple[str, ...] = ("randn", "randn_like", "normal", "normal_")


def draws_noise(evidence: Evidence) -> bool:
    """Check whether a run draws normal numbers, as the first state of slots (Locatello et al. 2020)."""
    with (noise := _Noise()):
        evidence.subject.fresh().run(evidence.inputs)
    return noise.drawn


class _Noise(TorchFunctionMode):
    """Notes whether normal numbers are drawn."""

    drawn = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.drawn |= getattr(func, "__name__", "") in NORMAL
        return func(*args, **(kwargs or {}))
