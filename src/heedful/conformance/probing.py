"""What a probe is: a question to the evidence, and the names of what it may find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from heedful.conformance.evidence import Evidence
from heedful.conformance.finding import Fact, Finding

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


PROBES: list[Probe] = []  # in the order of `probes/__init__.py`


def probe(*finds: str) -> Callable[[Question], Question]:
    """Enter a function among the probes, with the names of what it may find."""

    def enter(ask: Question) -> Question:
        PROBES.append(Probe(ask.__name__.replace("_", " "), finds, ask))
        return ask

    return enter
