"""The check of a target: call it, put every probe to it, and report the findings that are root causes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter  # bound here, because a target may replace it
from typing import Any

from torch import nn

from heedful.conformance.calling.capture import captured_from_model
from heedful.conformance.calling.construction import instantiate
from heedful.conformance.calling.constructor_parameters import unstated_parameters
from heedful.conformance.calling.crash_lines import causing_line
from heedful.conformance.calling.examples import Example
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    described_with_line,
    global_tensor_read,
    raising_line,
    unfit_mask,
)
from heedful.conformance.calling.failures import UncallableError
from heedful.conformance.calling.isolation import undisturbed, within
from heedful.conformance.calling.missing_names import is_missing_name
from heedful.conformance.calling.options import constructor_with, example_with, option
from heedful.conformance.calling.subject import find_subject
from heedful.conformance.calling.target import ConstructorError, Target, TargetError, is_from_torch
from heedful.conformance.calling.time_limit import TimeLimit
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.expectations import Expected
from heedful.conformance.probes import PROBES
from heedful.conformance.probes.probe import Probe
from heedful.conformance.recording.coverage import Coverage
from heedful.conformance.recording.line_tracer import LineTracer, traceable
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.result import CALLING, ProbeRun
from heedful.conformance.reporting.root_causes import HIDING, root_causes
from heedful.conformance.uncalled import report_without_call
from heedful.conformance.variants import with_variants
from heedful.errors import ArgumentError
from heedful.shapes import times

PROBE_SECONDS = 10.0
"""The time limit of one probe, about a hundred times what a probe of a small module takes."""

ALL_SECONDS = 45.0
"""The time limit of all probes together, like that of one in seconds of the processor."""

WHATEVER_THE_ROLES = frozenset(
    {"undefined-or-global-name", "attention-ignored", "projection-unused", "positions-wrong"}
    | {"heads-mixed-split", "heads-mixed-merge", "softmax-wrong-dim", "softmax-twice"}
    | {"mask-after-softmax", "mask-fill-overflow"}
    | {"scale-wrong", "scale-missing", "dropout-in-eval", "dropout-unused"}
    | {"mask-not-a-buffer", "table-not-a-buffer", "parameter-not-registered"}
)
"""Findings that do not depend on the roles of a call's arguments."""
BY_TRIAL = Fact("call", "found by trying shapes of its arguments; an example is surer")
COVERAGE = "coverage"
"""The name of the requirement that every line of the target runs, beside those of the probes."""


def check(
    target: nn.Module | type[nn.Module] | Callable[..., Any],
    *,
    module: str | None = None,
    example: Any = None,
    causal: bool | None = None,
    window: int | None = None,
    num_heads: int | None = None,
    cache: Callable[[int, int], Any] | None = None,
    expected_failures: Mapping[str, str] = {},
    arguments: Mapping[str, Any] = {},
    fix: bool = False,
    strict: bool = False,
) -> Report:
    """Check whether an attention is correct, and if it is not, report which bug it has and on which line.

    The target is called with small inputs, in float64 if it supports it. Only copies of it are run, and the random
    state and the settings of torch are restored afterwards.

    Args:
        target: A module; the class of a module, which is built from `arguments` and from values guessed by the names
            of the other parameters, with several heads and a dropout where the defaults are one and none, and again
            with a flag the other way round where it keeps lines from running; a function of (query, key, value, …);
            or a module or model of transformers.
        module: The name of a module within the target, as in `named_modules()`. That module is checked, and its example
            is captured from a run of the target, which is the surest way to find out how it is called.
        example: The arguments of a call: a tuple, a dict of keyword arguments, an `Example` of both, a tensor, or a
            function that returns one of them. Nothing is guessed then. Other sizes are tried for the batch and for the
            number of tokens, as far as the arguments have entries for them; all else stays as it is given.
        causal: Whether no query may see a later key. By default, the target's own declarations decide.
        window: The number of keys that each query sees, including its own. By default, the target's own declarations
            decide.
        num_heads: The number of heads. By default, the target's own declarations decide.
        cache: A function of (batch size, capacity) that returns an empty cache, if the target takes an unusual one.
        expected_failures: The names of known findings, each with a reason. They do not count as bugs.
        arguments: The arguments of the constructor, if the target is a class.
        fix: Whether to look for edits of the source that mend the bugs. Each is applied to a copy of the file, and
            kept if the bug is then gone and no other one has come. No file is changed.
        strict: Whether lines of the target that no probe runs are a bug.

    Returns:
        The findings, with proof and source line, the facts about the target, and the fixes if they were asked for.

    Raises:
        ArgumentError: The target cannot be built or called, an expected failure has a name that no finding has, or
            fixes were asked for, and no file defines the target.

    Examples:
        >>> from heedful import check
        >>> def attend(query, key, value):
        ...     return (query @ key.mT).softmax(dim=-1) @ value
        >>> [finding.name for finding in check(attend).bugs]
        ['scale-missing']
    """

    checked = partial(
        _check,
        example=example,
        expected=Expected(causal, window, num_heads),
        cache=cache,
        expected_failures=expected_failures,
        arguments=arguments,
        module=module,
    )
    with undisturbed():
        try:
            report = checked(target)
        except UncallableError as error:
            shown = None if module is not None else report_without_call(target, arguments, error)
            if shown is None:
                raise
            return replace(
                shown, expected_failures=dict(expected_failures), fixes=() if fix else None
            )
        if BY_TRIAL not in report.facts:  # an edited copy, or another flag, changes no shape
            checked = partial(checked, by_trial=False)
        if report.blocking_bug is not None or any(it.name in HIDING for it in report.bugs):
            from heedful.conformance.fixing.behind import findings_behind

            found = findings_behind(target, report, checked)
            report = replace(report, findings=(*report.findings, *found))
        if fix:
            from heedful.conformance.fixing.proof import proved_fixes  # libcst takes long to import

            report = replace(report, fixes=proved_fixes(target, report, checked))
        if inspect.isclass(target) and example is None and module is None:
            report = with_variants(target, report, checked, arguments)
    return _with_coverage(report) if strict and report.blocking_bug is None else report


def _check(
    target: Any,
    unless: str = "",
    *,
    example: Any,
    expected: Expected,
    cache: Callable[[int, int], Any] | None,
    expected_failures: Mapping[str, str],
    arguments: Mapping[str, Any],
    module: str | None,
    flags: Mapping[str, bool] = {},
    by_trial: bool = True,
) -> Report:
    """Return the report on a target without fixes; the check stops early if it finds the bug `unless`.

    The flags are arguments of every call that have other values than their defaults.
    """
    with undisturbed():
        try:
            if module is not None:
                model = instantiate(target, arguments)
                captured = captured_from_model(model, module, example)
                target, example, arguments = captured.module, captured.example, {}
            evidence = evidence_of(
                target,
                example=example,
                expected=expected,
                cache=cache,
                arguments=arguments,
                flags=flags,
                by_trial=by_trial,
            )
        except TargetError as error:
            built = not isinstance(error, ConstructorError)
            guessed = inspect.isclass(target) and unstated_parameters(target, arguments)
            if built and example is not None and guessed:
                raise _unfit_example(target, error) from error
            name, runs, coverage = str(error), (_failed_call(error),), None
            by_trial = False
        else:
            name = evidence.subject.name
            runs, coverage = _run_probes(evidence, unless)
            by_trial = evidence.subject.convention.by_trial
    source = example.source if isinstance(example, Example) else ""
    facts = [Fact("example", source)] if source else []
    facts += [BY_TRIAL] if by_trial else []
    facts += [fact for run in runs for fact in run.facts]
    return Report(
        target=name,
        findings=tuple(root_causes(finding for run in runs for finding in run.findings)),
        facts=tuple(dict.fromkeys(facts)),
        expected_failures=dict(expected_failures),
        probes=runs,
        coverage=coverage,
    )


def _runs(evidence: Evidence, unless: str) -> Iterator[ProbeRun]:
    """Put every probe to the evidence, first those that may find a bug, and none after one has found it."""
    limit = TimeLimit(ALL_SECONDS)
    for probe in sorted(PROBES, key=lambda probe: unless not in probe.finds) if unless else PROBES:
        run = run_probe(evidence, probe, min(PROBE_SECONDS, max(limit.left(), 0.0)))
        if evidence.subject.convention.by_trial:
            of_ids = bool(evidence.subject.convention.vocabulary)
            run = replace(run, findings=tuple(_of_a_trial(it, of_ids) for it in run.findings))
        yield run
        if any(finding.name == unless and finding.level == "bug" for finding in run.findings):
            return


def _of_a_trial(finding: Finding, of_ids: bool) -> Finding:
    """Return a finding as a suspicion if it depends on the roles of arguments that were found by trial.

    Args:
        finding: The finding.
        of_ids: Whether the tokens are ids, which are nothing else.
    """
    if of_ids and finding.name == "future-leak":
        return finding
    sure = finding.level != "bug" or finding.name in WHATEVER_THE_ROLES or finding.case == ANY_CALL
    return finding if sure else replace(finding, level="suspicious")


def evidence_of(
    target: Any,
    *,
    example: Any = None,
    expected: Expected,
    cache: Callable[[int, int], Any] | None = None,
    arguments: Mapping[str, Any] = {},
    flags: Mapping[str, bool] = {},
    by_trial: bool = True,
) -> Evidence:
    """Return the evidence about a target; its arguments are those of `check`, and flags of every call.

    Shapes of arguments that nothing tells are tried if `by_trial` is set, which takes some seconds.

    Raises:
        ArgumentError: The target cannot be built or called.
        TargetError: The constructor, or a call that is shown to be valid, fails in the target's code.
    """
    subject = find_subject(
        target,
        example=example,
        causal=expected.causal,
        cache=cache,
        arguments=arguments,
        flags=flags,
        by_trial=by_trial,
    )
    evidence = Evidence(subject, expected)
    failed = attempt(lambda: evidence.baseline) if subject.convention.from_example else None
    if isinstance(failed, Exception) and subject.convention.guessed:
        raise ArgumentError(
            option("example"),
            expected="a call that shows which of its sizes are those of the batch and of the tokens",
            received=f"a call of {subject.name} that runs, but with other sizes raises {describe_exception(failed)}",
            remedy="Give an example in which the batch and the tokens have sizes that no other axis has.",
        ) from failed
    return evidence


def _run_probes(evidence: Evidence, unless: str) -> tuple[tuple[ProbeRun, ...], Coverage | None]:
    """Put the probes to the evidence, and return what they ran of the target, unless another tracer is at work."""
    target = evidence.subject.target
    forward = None if is_from_torch(target.module) else traceable(target.callee)
    if forward is None or sys.gettrace() is not None:  # a debugger keeps its place
        return tuple(_runs(evidence, unless)), None
    tracer = LineTracer(forward)
    with tracer.watching():
        runs = tuple(_runs(evidence, unless))
    return runs, tracer.coverage(partial(_remedy, target))


def _remedy(target: Target, arguments: Sequence[str], attributes: Sequence[str]) -> str:
    """Return how to run a branch that the given arguments and attributes decide about."""
    if arguments:
        return f"Give {' and '.join(arguments)}: {example_with(*arguments)}."
    if target.module is None:
        return ""
    accepted = inspect.signature(type(target.module)).parameters
    known = [constructor_with(attribute) for attribute in attributes if attribute in accepted]
    return f"Check it with {known[0]}, too." if known else ""


def _with_coverage(report: Report) -> Report:
    """Return a report with the requirement that every line runs."""
    findings = tuple(_lines_not_run(report.coverage))
    run = ProbeRun(COVERAGE, 0.0, findings)
    return replace(report, findings=(*report.findings, *findings), probes=(*report.probes, run))


def _lines_not_run(coverage: Coverage | None) -> Iterator[Finding]:
    if coverage is None:
        proof = "It is unknown which lines ran: the target has no Python source, or another tracer is at work."
        yield Finding("lines-not-run", "not-testable", proof)
    elif coverage.missed:
        first, *others = coverage.missed
        more = f", and {len(others)} other branches" if others else ""
        proof = f"No probe ran lines {first.place.line} to {first.last} ({first.branch}){more}."
        yield Finding("lines-not-run", "bug", proof, "", first.place, first.remedy)


def run_probe(evidence: Evidence, probe: Probe, seconds: float = PROBE_SECONDS) -> ProbeRun:
    """Put one probe to the evidence for a limited time; an exception that the target raises is a finding, too."""
    start = perf_counter()
    answers: list[Finding | Fact] = []
    try:
        with within(seconds):
            answers.extend(probe.ask(evidence))
    except Exception as error:  # noqa: BLE001 - a target may raise anything
        answers.append(_finding_on_exception(probe, error, seconds))
    return ProbeRun(
        name=probe.name,
        seconds=perf_counter() - start,
        findings=tuple(answer for answer in answers if isinstance(answer, Finding)),
        facts=tuple(answer for answer in answers if isinstance(answer, Fact)),
    )


def _failed_call(error: TargetError) -> ProbeRun:
    """Return the outcome for a target that raises in its constructor, or in calls that are shown to be valid."""
    cause = error.__cause__ or error
    return ProbeRun(CALLING, 0.0, (_crash(cause, raising_line(cause)),))


def _unfit_example(target: type, error: TargetError) -> ArgumentError:
    """Return the error about an example that fails with a module that was built from conventional values."""
    cause = error.__cause__
    name = next(iter(inspect.signature(target).parameters), "NAME")
    return ArgumentError(
        option("example"),
        expected=f"arguments that fit {target.__name__} as the check has built it",
        received=f"some with which it raises {cause and described_with_line(cause)}",
        remedy=f"Give the constructor's arguments, too: {constructor_with(name)}.",
    )


def _finding_on_exception(probe: Probe, error: Exception, seconds: float) -> Finding:
    """Return the finding on an exception that a probe met.

    It is a bug only if no input could prevent it, because a probe may pass what the target need not accept.
    """
    if isinstance(error, TimeoutError):
        all_time_is_up = f"was not run, because the others have taken {ALL_SECONDS:.0f} s"
        reason = f"did not finish within {seconds:.0f} s" if seconds else all_time_is_up
        proof = f"The probe {probe.name!r} {reason}."
        return Finding(probe.finds[0], "not-testable", proof)
    if is_missing_name(error) or global_tensor_read(error) is not None:
        return _crash(error, raising_line(error))
    reason = str(error) if isinstance(error, TargetError) else described_with_line(error)
    proof = f"The probe {probe.name!r} could not run: {reason}"
    return Finding(probe.finds[0], "not-testable", proof)


def _crash(error: BaseException, place: SourceLine | None) -> Finding:
    """Return the finding on an exception that the target raises on valid input."""
    description = describe_exception(error)
    global_read = global_tensor_read(error)
    if global_read is not None:
        name, line = global_read
        proof = f"It reads the global tensor {name!r}, which is the same for all inputs, and raises {description}"
        return Finding("undefined-or-global-name", "bug", proof, place=line)
    mask = unfit_mask(error)
    if mask is not None:
        proof = f"The mask {mask.name} ({times(mask.shape)}) does not fit the scores. It raises {description}"
        return Finding("mask-broadcast", "bug", proof, place=mask.place)
    name = "undefined-or-global-name" if isinstance(error, NameError) else "crashes"
    return Finding(name, "bug", f"It raises {description}", place=causing_line(error) or place)
