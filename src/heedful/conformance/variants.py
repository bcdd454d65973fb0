"""Check a class again with another argument of its constructor, where the default kept something from being checked.

That is a flag that kept lines from running, a size that is off by default (a window, a soft cap, the number of key
heads) or a window that is wider than every sequence of the check, or a choice with which the class cannot be called.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from heedful.conformance.calling import names
from heedful.conformance.calling.construction import unstated_parameters
from heedful.conformance.calling.conventional import conventional_values
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.expectations import Expected
from heedful.conformance.probes.causality import causality
from heedful.conformance.probes.sequence_lengths import LENGTHS
from heedful.conformance.recording.source import names_in, parsed, texts_compared
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.report import Report

NOT_COUNTED = (*causality.finds, "crashes")
"""Findings that may be meant, or be mended by other arguments: a flag may decide whether a target is causal."""
CERTAIN = ("undefined-or-global-name", "dropout-in-eval", "parameter-not-registered")
"""Findings that are bugs whatever else is meant with the flag."""
OF_SIZES = ("crashes", "length-dependent")
"""Findings that a size may cause: numbers of tokens may have to be multiples of a window, and heads of key heads."""
MAX_FLAGS = 2  # each takes as long as the first check
MAX_CHOICES = 3  # of which most that cannot be called fail as fast as the first


def answers_of_variants(
    target: type, report: Report, checked: Callable[..., Report], arguments: Mapping[str, Any]
) -> Iterator[Finding | Fact]:
    """Yield the bugs that a class has only with another argument, and the arguments that were tried.

    Most that a flag causes are suspicious alone, because flags may exclude one another. What the user states is of the
    class as it is, and not of these. What cannot be called then, or raises an exception, may need other arguments, too:
    it stays among the lines that never ran.

    Args:
        target: The class.
        report: What the check with its defaults has found.
        checked: The check, a function of the target and of the constructor's `arguments`.
        arguments: The arguments that the user gives.
    """
    known = {(it.name, it.place) for it in report.findings}
    yield from _answers_of_other_choices(target, report, checked, arguments)
    flags = list(_flags_in_missed_lines(target, report, arguments))[:MAX_FLAGS]
    for name, value in (*flags, *_sizes_that_show(target, arguments)):
        variant = _report_with(target, checked, arguments, name, value)
        if variant is None:
            continue
        is_flag = isinstance(value, bool)
        yield Fact("also with", f"{name}={value}")
        for finding in variant.bugs:
            if finding.name in (NOT_COUNTED if is_flag else OF_SIZES):
                continue
            if (finding.name, finding.place) in known:
                continue
            known.add((finding.name, finding.place))
            level = "suspicious" if is_flag and finding.name not in CERTAIN else "bug"
            yield replace(finding, level=level)


def _answers_of_other_choices(
    target: type, report: Report, checked: Callable[..., Report], arguments: Mapping[str, Any]
) -> Iterator[Finding | Fact]:
    """Yield what is found with another choice, where the one that was made for a class ends every call of it.

    Choices are texts with which the class compares an argument of its constructor. The first that can be called counts.
    """
    crashes = report.blocking_bug is not None and report.blocking_bug.name == "crashes"
    compared = texts_compared(target) if crashes else {}
    unstated = unstated_parameters(target, arguments) if crashes else []
    choices = [(name, text) for name in unstated for text in compared.get(name, [])[1:]]
    for name, text in choices[:MAX_CHOICES]:
        variant = _report_with(target, checked, arguments, name, text)
        if variant is not None and variant.blocking_bug is None:
            yield Fact("also with", f"{name}={text!r}")
            yield from variant.bugs
            return


def _report_with(
    target: type,
    checked: Callable[..., Report],
    arguments: Mapping[str, Any],
    name: str,
    value: float | str,
) -> Report | None:
    """Return the report on a class with another argument, which the case of each finding names; None if it fails."""
    given = {**arguments, name: value}
    report = attempt(lambda: checked(target, arguments=given, expected=Expected(), strict=False))
    if isinstance(report, Exception):
        return None
    cases = [", ".join(filter(None, (it.case, f"{name}={value!r}"))) for it in report.findings]
    named = zip(report.findings, cases, strict=True)
    return replace(report, findings=tuple(replace(it, case=case) for it, case in named))


def _flags_in_missed_lines(
    target: type, report: Report, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    """Yield the flags of a constructor that decide about lines that never ran, each the other way round."""
    missed = () if report.coverage is None else report.coverage.missed
    read = {word for lines in missed for word in re.findall(r"\w+", lines.branch)}
    source = parsed(target)
    for node in ast.walk(source.tree) if source is not None and missed else ():
        if isinstance(node, ast.If):
            read |= names_in([node.test])
    for name, parameter in inspect.signature(target).parameters.items():
        if name in read and name not in arguments and isinstance(parameter.default, bool):
            yield name, not parameter.default


def _sizes_that_show(target: type, arguments: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the sizes of a constructor that have no effect by default, each with a value that has one."""
    parameters = inspect.signature(target).parameters
    defaults = {name: it.default for name, it in parameters.items() if type(it.default) is int}
    conventional = conventional_values(arguments, defaults)
    heads = {value for name, value in {**defaults, **arguments}.items() if name in names.HEADS}
    for name, parameter in parameters.items():
        default, value = parameter.default, conventional.get(name)
        is_off = default is None or (type(default) in (int, float) and default <= 0)
        is_wide = type(default) is int and default > max(LENGTHS)
        shows = (
            (name in names.WINDOWS and (is_off or is_wide))
            or (name in names.SOFT_CAPS and is_off)
            or (name in names.KEY_HEADS and (default is None or default in heads) and value > 1)
        )
        if shows and name not in arguments:
            yield name, value
