"""What a probe is: a question to the evidence, and the names of what it may find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.reporting.finding import Fact, Finding

Question = Callable[[Evidence], Iterator[Finding | Fact]]


@dataclass(frozen=True)
class Probe:
    """One of the things that are looked at.

    Attributes:
        name: the question's own.
        finds: names of the findings that it may yield.
        ask: yields what it finds.
    """

    name: str
    finds: tuple[str, ...]
    ask: Question

    @property
    def meaning(self) -> str:
        """What it does and what that shows."""
        return (self.ask.__doc__ or "").strip().partition("\n")[0]


def probe(*finds: str) -> Callable[[Question], Probe]:
    """Make a probe of a function, given the names of the findings that it may yield."""
    return lambda ask: Probe(ask.__name__.replace("_", " "), finds, ask)
