"""Check a class again with a flag of its constructor the other way round, where the flag kept lines from running."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.report import Report

MAX_FLAGS = 2  # each takes as long as the first check


def findings_of_variants(
    target: type, report: Report, checked: Callable[..., Report], arguments: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield the bugs that a class has only if one of its flags is the other way round.

    What cannot be called then, or raises an exception, may need other arguments, too: it stays among the lines that
    never ran.

    Args:
        target: The class.
        report: What the check with its defaults has found.
        checked: The check, a function of the target and of the constructor's `arguments`.
        arguments: The arguments that the user gives.
    """
    known = {(it.name, it.place) for it in report.findings}
    for name, flag in list(_flags_in_missed_lines(target, report, arguments))[:MAX_FLAGS]:
        variant = attempt(lambda given={**arguments, name: flag}: checked(target, arguments=given))
        for finding in () if isinstance(variant, Exception) else variant.bugs:
            if finding.name == "crashes" or (finding.name, finding.place) in known:
                continue
            known.add((finding.name, finding.place))
            case = ", ".join(filter(None, (finding.case, f"{name}={flag}")))
            yield replace(finding, case=case)


def _flags_in_missed_lines(
    target: type, report: Report, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    """Yield the flags of a constructor that decide about lines that never ran, each the other way round."""
    missed = () if report.coverage is None else report.coverage.missed
    read = {word for lines in missed for word in re.findall(r"\w+", lines.branch)}
    for name, parameter in inspect.signature(target).parameters.items():
        if name in read and name not in arguments and isinstance(parameter.default, bool):
            yield name, not parameter.default
