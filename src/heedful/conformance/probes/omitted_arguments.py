"""Probe: the target runs without its optional arguments."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from itertools import pairwise

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.failures import is_refusal
from heedful.conformance.calling.omitted_arguments import (
    asked_for,
    may_be_omitted,
    optional_arguments,
)
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.forwarding import parameter_is_read
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding


@probe("crashes")
def omitted_arguments(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Omit the arguments that are None by default. The target may need none that its code compares with None.

    Nor may it need one that a comma in an annotation has made.
    """
    yield from _made_by_a_comma(evidence)
    subject, inputs = evidence.subject, evidence.inputs
    given = subject.arguments(inputs)
    omissible = may_be_omitted(subject.target, given)
    if subject.convention.from_example or not omissible:
        return
    optional = optional_arguments(subject.target)
    rest = {name: value for name, value in given.items() if name not in optional}
    error = attempt(lambda: subject.call(rest, inputs))
    if not isinstance(error, Exception) or is_refusal(error):
        return
    asked = asked_for(error, optional & given.keys()) or _mask_made_in_place(error, omissible)
    if asked in omissible:
        B, T = inputs.sizes
        yield Finding(
            "crashes",
            "bug",
            f"{asked!r} is None by default, and the code compares it with None. Without it, the target raises "
            f"{describe_exception(error)}",
            f"B = {B}, T = {T}",
            raising_line(error),
        )


def _made_by_a_comma(evidence: Evidence) -> Iterator[Finding]:
    """Report a required argument that nothing reads, behind one whose annotation is a module: `y: torch, Tensor`."""
    target = evidence.subject.target
    for (name, parameter), following in pairwise(target.parameters.items()):
        extra = following[0]
        if not inspect.ismodule(parameter.annotation) or extra not in target.required:
            continue
        if not parameter_is_read(target.forward, extra):
            code = target.forward.__code__
            yield Finding(
                "crashes",
                "bug",
                f"{name!r} is annotated with the module {parameter.annotation.__name__}, and the comma behind it makes "
                f"{extra!r} an argument that every call must give, though nothing reads it.",
                ANY_CALL,
                SourceLine.at(code.co_filename, code.co_firstlineno),
                f"Write {name}: {parameter.annotation.__name__}.{extra.capitalize()}.",
            )


def _mask_made_in_place(error: BaseException, omitted: Collection[str]) -> str | None:
    """Return the omitted mask in whose place the target makes one that does not fit; None if that is not the error."""
    line = raising_line(error)
    if line is None or "mask" not in line.source.lower():
        return None
    return next((name for name in sorted(omitted) if "mask" in name.lower()), None)
