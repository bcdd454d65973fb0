"""Check that padding of a second sequence, such as an encoder's outputs, does not change the outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.padding import padding
from heedful.conformance.probes.padding_argument import padding_argument
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Fact, Finding

NAMES = (
    *("mask-inverted", "mask-unused", "padding-leak", "mask-broadcast"),
    *("mask-fill-too-small", "mask-after-softmax"),
)


@probe(*NAMES)
def second_sequence(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Pad the second sequence, while the first one stays the same. Its mask must hide the padding, and no more."""
    second = evidence.of_second_sequence
    if second is None or second.subject.padding is None:
        return
    name = second.subject.convention.names[0]
    for question in (padding_argument, padding):
        for answer in question.ask(second):
            if isinstance(answer, Fact):
                yield Fact(f"padding of {name}", answer.value)
            elif answer.name in NAMES:
                yield replace(answer, case=f"{answer.case} of {name}")
