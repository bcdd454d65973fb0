"""Probe: the target runs without its optional arguments."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.failures import is_refusal
from heedful.conformance.calling.omitted_arguments import (
    asked_for,
    may_be_none,
    optional_arguments,
)
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Fact, Finding


@probe("crashes")
def omitted_arguments(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Omit the arguments that are None by default. The target may need none that its code compares with None."""
    subject, inputs = evidence.subject, evidence.inputs
    given = subject.arguments(inputs)
    optional = optional_arguments(subject.target) & given.keys()
    if subject.convention.from_example or not any(
        may_be_none(subject.target, name) for name in optional
    ):
        return
    rest = {name: value for name, value in given.items() if name not in optional}
    error = attempt(lambda: subject.call(rest, inputs))
    asked = asked_for(error, optional) if isinstance(error, Exception) else None
    if asked is not None and may_be_none(subject.target, asked) and not is_refusal(error):
        B, T = inputs.sizes
        yield Finding(
            "crashes",
            "bug",
            f"{asked!r} is None by default, and the code compares it with None. Without it, the target raises "
            f"{describe_exception(error)}",
            f"B = {B}, T = {T}",
            raising_line(error),
        )
