"""Check a class again with another argument of its constructor, where the default kept something from being checked.

That is a flag, also one of a configuration, or a text that kept lines from running, a size that is off by
default (a window, a soft cap, the number of key heads), the class of a norm that is None by default, or a window that
is wider than every sequence of the check, or a choice with which the class cannot be called. A flag of the call is
tried as well.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import nn

from heedful.conformance.calling import names
from heedful.conformance.calling.constructor_parameters import (
    defaults_of,
    flags_of,
    unstated_parameters,
)
from heedful.conformance.calling.conventional import conventional_values
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.parts import makes_layer
from heedful.conformance.evidence.expectations import Expected
from heedful.conformance.failing_choices import (
    failing_choice,
    merged_to_input_width,
    rotary_size_mistaken,
)
from heedful.conformance.probes.causality import causality
from heedful.conformance.probes.sequence_lengths import LENGTHS
from heedful.conformance.probes.statements import statements
from heedful.conformance.recording.forwarding import construction_omitting
from heedful.conformance.recording.source import (
    SourceLine,
    names_in,
    names_of_methods,
    parsed,
    texts_compared,
)
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding, Level
from heedful.conformance.reporting.report import Report

NOT_COUNTED = (*causality.finds, "crashes")
"""Findings that may be meant, or be mended by other arguments: a flag may decide whether a target is causal."""
CERTAIN = (
    *("undefined-or-global-name", "dropout-in-eval", "parameter-not-registered"),
    "rotary-mismatch",
)
"""Findings that are bugs whatever else is meant with the flag."""
OF_CAUSALITY = (*causality.finds, *statements.finds, "rows-not-normalised")
"""Findings that are bugs with a flag that says whether the target is causal."""
OF_CALLS = (
    *("attention-ignored", "softmax-twice", "scale-wrong"),
    *("heads-mixed-split", "heads-mixed-merge"),
)
"""Findings that are bugs with a flag of the call, which says nothing about them."""
OF_RESULTS: re.Pattern[str] = re.compile(
    r"return|need|output|average|debug|verbose|vis(uali[sz]e)?$"
)
"""The names of flags that decide about what a call returns."""
OF_SIZES = ("crashes", "length-dependent")
"""Findings that a size may cause: numbers of tokens may have to be multiples of a window, and heads of key heads."""
OF_TEXTS = ("rows-not-normalised",)
"""Findings that a text may ask for, such as normalize="sigmoid"."""
OF_CACHES = ("cache-mismatch", "causal-alignment", "rotary-offset")
"""Findings that are bugs with a flag that turns a cache on: the same tokens in one call are right."""
Value = float | str | type[nn.Module]
"""What an argument of a constructor may be in place of its default."""
MAX_FLAGS = 2  # each takes as long as the first check
MAX_CHOICES = 3  # of which most that cannot be called fail as fast as the first


def with_variants(
    target: type, report: Report, checked: Callable[..., Report], arguments: Mapping[str, Any]
) -> Report:
    """Return a report with the bugs that a class has only with another argument, and the arguments that were tried.

    Most that a flag causes are suspicious alone, because flags may exclude one another. What the user states is of the
    class as it is, and not of these. What cannot be called then, or raises an exception, may need other arguments, too:
    it stays among the lines that never ran.

    Args:
        target: The class.
        report: What the check with its defaults has found.
        checked: The check, a function of the target and of the constructor's `arguments`.
        arguments: The arguments that the user gives.
    """
    report = _with_another_choice(target, report, checked, arguments)
    settings = [*_other_settings(target, report, arguments)]
    sizes = dict(_sizes_that_show(target, arguments))
    at_once = _report_with(target, checked, arguments, sizes) if len(sizes) > 1 else None
    known = _places(report.findings)
    if at_once is None or _crashes(at_once) or _places(at_once.bugs) - known:
        settings += sizes.items()
    else:
        report = _together(report, at_once, (), sizes)
    for name, value in settings:
        variant = _report_with(target, checked, arguments, {name: value})
        if variant is None or _crashes(variant):
            report = _with_failing_choice(report, target, name, value, arguments)
        else:
            levels = [(it, _level_with(name, value, it)) for it in variant.bugs]
            found = [replace(it, level=level) for it, level in levels if level is not None]
            report = _together(report, variant, found, {name: value})
    for name in islice(_flags_of_calls(target, report), MAX_FLAGS):
        variant = _report_with(target, checked, arguments, {}, flags={name: True})
        if variant is not None and not _crashes(variant):
            found = [it for it in variant.bugs if it.name in (*CERTAIN, *OF_CALLS)]
            report = _together(report, variant, found, {name: True})
    for with_unequal_sizes in (merged_to_input_width, rotary_size_mistaken):
        found = None if report.bugs else with_unequal_sizes(target, arguments)
        if found is not None:
            report = replace(report, findings=(*report.findings, found))
    return report


def _places(findings: Sequence[Finding]) -> set[tuple[str, SourceLine | None]]:
    """Return what was found where, which is the same finding also with other arguments."""
    return {(it.name, it.place) for it in findings}


def _together(
    report: Report, variant: Report, found: Sequence[Finding], settings: Mapping[str, Value]
) -> Report:
    """Return a report with what was found with other arguments, and with the lines that ran then."""
    known = _places(report.findings)
    new = {(it.name, it.place): it for it in found if (it.name, it.place) not in known}
    coverage = report.coverage
    if coverage is not None and variant.coverage is not None:
        coverage = coverage.together_with(variant.coverage)
    return replace(
        report,
        findings=(*report.findings, *new.values()),
        facts=(*report.facts, *(Fact("also with", f"{it}={settings[it]!r}") for it in settings)),
        coverage=coverage,
    )


def _crashes(report: Report) -> bool:
    """Check whether every call raises an exception."""
    return report.blocking_bug is not None and report.blocking_bug.name == "crashes"


def _with_failing_choice(
    report: Report, target: type, name: str, value: Value, arguments: Mapping[str, Any]
) -> Report:
    """Return a report with the finding on a value with which no call can work, unless another one failed there."""
    found = failing_choice(target, name, value, arguments)
    if found is None or found.place in {it.place for it in report.findings}:
        return report
    return replace(report, findings=(*report.findings, found))


def _other_settings(
    target: type, report: Report, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, Value]]:
    """Yield the flags, texts and norms of a constructor that may show more than the defaults, with other values."""
    of_causality = list(_flags_of_causality(target, arguments))
    flags = (
        it for it in _flags_in_missed_lines(target, report, arguments) if it not in of_causality
    )
    yield from of_causality
    yield from islice(sorted(flags, key=lambda it: it[0] not in names.BATCH_FIRST), MAX_FLAGS)
    yield from islice(_texts_in_missed_lines(target, report, arguments), MAX_FLAGS)
    yield from _norms_left_out(target, arguments)


def _level_with(name: str, value: Value, finding: Finding) -> Level | None:
    """Return the level of a finding with another value of an argument; None if it says nothing about the class."""
    of_causality = name in names.CAUSAL and finding.name in OF_CAUSALITY
    of_cache = "cache" in name and finding.name in OF_CACHES
    if finding.name in CERTAIN or of_causality or of_cache or finding.case.startswith(ANY_CALL):
        return "bug"
    if isinstance(value, bool):
        level: Level = "bug" if name in names.BATCH_FIRST else "suspicious"
        return None if finding.name in NOT_COUNTED else level
    if isinstance(value, str) and finding.name in (*NOT_COUNTED, *OF_TEXTS):
        return None
    return None if finding.name in OF_SIZES else "bug"


def _with_another_choice(
    target: type, report: Report, checked: Callable[..., Report], arguments: Mapping[str, Any]
) -> Report:
    """Return a report with what is found with another choice, if the one that was made for a class ends every call.

    Choices are texts with which the class compares an argument of its constructor. The first that can be called counts.
    """
    compared = texts_compared(target) if _crashes(report) else {}
    unstated = unstated_parameters(target, arguments) if _crashes(report) else []
    choices = [(name, text) for name in unstated for text in compared.get(name, [])[1:]]
    for name, text in choices[:MAX_CHOICES]:
        variant = _report_with(target, checked, arguments, {name: text})
        if variant is not None and variant.blocking_bug is None:
            shown = _places(variant.bugs)  # surer than behind a repair
            others = tuple(it for it in report.findings if (it.name, it.place) not in shown)
            without = replace(report, findings=others)
            return _together(without, variant, variant.bugs, {name: text})
    return report


def _report_with(
    target: type,
    checked: Callable[..., Report],
    arguments: Mapping[str, Any],
    settings: Mapping[str, Value],
    flags: Mapping[str, bool] = {},
) -> Report | None:
    """Return the report on a class with other arguments, which the case of each finding names; None if it fails.

    The settings are those of the constructor, and the flags those of every call.
    """
    of_causality = [bool(value) for name, value in settings.items() if name in names.CAUSAL]
    expected = Expected(causal=of_causality[0]) if of_causality else Expected()
    given = {**arguments, **settings}
    report = attempt(lambda: checked(target, arguments=given, flags=flags, expected=expected))
    if isinstance(report, Exception):
        return None
    findings = (_told_of(it, {**settings, **flags}, target) for it in report.findings)
    return replace(report, findings=tuple(findings))


def _told_of(finding: Finding, settings: Mapping[str, Value], target: type) -> Finding:
    """Return a finding that names the arguments with which a class was checked: as its case, and as what is stated."""
    set_to = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    proof = finding.proof.replace("The caller states", f"{set_to} says")
    proof = proof.replace("the caller states so", f"it has {set_to}")
    case = ", ".join(filter(None, (finding.case, set_to)))
    place = finding.place
    if finding.name in statements.finds:
        omitting = (construction_omitting(target, name) for name in settings)
        place = next(filter(None, omitting), place)
    return replace(finding, proof=proof, case=case, place=place)


def _flags_in_missed_lines(
    target: type, report: Report, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    """Yield the flags of a class that decide about lines that never ran, each the other way round."""
    missed = () if report.coverage is None else report.coverage.missed
    read = {word for lines in missed for word in re.findall(r"\w+", lines.branch)}
    source = parsed(target)
    for node in source.nodes if source is not None and missed else ():
        if isinstance(node, ast.If):
            read |= names_in([node.test])
        elif isinstance(node, ast.keyword) and node.arg in read:
            read |= names_in([node.value])
    for name, default in flags_of(target).items():
        if name in read and name not in arguments:
            yield name, not default


def _flags_of_calls(target: type, report: Report) -> Iterator[str]:
    """Yield the flags of a class's forward that no call has set, and that decide about lines that never ran."""
    coverage, forward = report.coverage, getattr(target, "forward", None)
    if coverage is None or forward is None:
        return
    read = {word for lines in coverage.missed for word in re.findall(r"\w+", lines.branch)}
    for name, parameter in inspect.signature(forward).parameters.items():
        is_unset = parameter.default is False and name in coverage.never_given and name in read
        if is_unset and not OF_RESULTS.search(name):
            yield name


def _texts_in_missed_lines(
    target: type, report: Report, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the texts, as "relative", with which a class compares an argument before lines that never ran.

    Those of an argument by which it chooses a method count, too.
    """
    missed = () if report.coverage is None else report.coverage.missed
    branches = " ".join(lines.branch for lines in missed)
    of_methods = names_of_methods(target)
    compared = texts_compared(target) if missed or of_methods else {}
    for name, parameter in inspect.signature(target).parameters.items():
        decides = re.search(rf"\b{name}\b", branches) or name in of_methods
        if name not in arguments and decides:
            texts = compared.get(name, [])
            required = parameter.default is parameter.empty  # and built with the first text
            used = next(iter(texts), "") if required else parameter.default
            yield from ((name, text) for text in texts if text != used)


def _flags_of_causality(target: type, arguments: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield the flags of a constructor that say whether the class is causal, each the other way round."""
    for name, default in flags_of(target).items():
        if name in names.CAUSAL and name not in arguments:
            yield name, not default


def _norms_left_out(
    target: type, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, type[nn.Module]]]:
    """Yield the parameters that take the class of a norm and are None by default, with nn.LayerNorm."""
    for name, parameter in inspect.signature(target).parameters.items():
        is_left_out = parameter.default is None and name not in arguments
        if is_left_out and "norm" in name and makes_layer(target, name):
            yield name, nn.LayerNorm


def _sizes_that_show(target: type, arguments: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the sizes of a constructor that have no effect by default, each with a value that has one.

    A cap on scores may also be a field of its configuration.
    """
    parameters = inspect.signature(target).parameters
    defaults = {name: it.default for name, it in parameters.items() if type(it.default) is int}
    conventional = conventional_values(arguments, defaults)
    heads = {value for name, value in {**defaults, **arguments}.items() if name in names.HEADS}
    for name, default in defaults_of(target).items():
        value = conventional.get(name, 0)
        is_off = default is None or (type(default) in (int, float) and default <= 0)
        is_wide = type(default) is int and default > max(LENGTHS)
        shows = (
            (name in names.WINDOWS and (is_off or is_wide))
            or (name in names.SOFT_CAPS and is_off)
            or (name in names.KEY_HEADS and (default is None or default in heads) and value > 1)
        )
        configured = name not in parameters and name not in names.SOFT_CAPS
        if shows and not configured and name not in arguments:
            yield name, value
