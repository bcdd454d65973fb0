"""The definition of a probe: one question to the evidence, and the findings that may answer it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.reporting.finding import Fact, Finding

Question = Callable[[Evidence], Iterator[Finding | Fact]]


@dataclass(frozen=True)
class Probe:
    """One question to the evidence.

    Attributes:
        name: as reports print it.
        finds: the names of the findings that it may yield, most typical first.
        ask: yields findings and facts.
    """

    name: str
    finds: tuple[str, ...]
    ask: Question

    @property
    def meaning(self) -> str:
        """The first line of the function's docstring: what the probe does."""
        return (self.ask.__doc__ or "").strip().partition("\n")[0]


def probe(*finds: str) -> Callable[[Question], Probe]:
    """Make a function a probe, named after it.

    Args:
        finds: the names of the findings that the function may yield.
    """

    def make(ask: Question) -> Probe:
        return Probe(ask.__name__.replace("_", " "), finds, ask)

    return make
