"""The check of a target: call it, put every probe to it, and report the findings that are root causes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from heedful.conformance.calling.exceptions import (
    describe_exception,
    described_with_line,
    global_tensor_read,
    raising_line,
)
from heedful.conformance.calling.failures import is_missing_name
from heedful.conformance.calling.isolation import undisturbed, within
from heedful.conformance.calling.subject import find_subject
from heedful.conformance.calling.target import TargetError
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.expectations import Expected
from heedful.conformance.probes import PROBES
from heedful.conformance.probes.probe import Probe
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.result import ProbeRun
from heedful.conformance.reporting.root_causes import root_causes

PROBE_SECONDS = 10.0
"""The time limit of one probe, about a hundred times what a probe of a small module takes."""


def check(
    target: nn.Module | type[nn.Module] | Callable[..., Any],
    *,
    example: Any = None,
    causal: bool | None = None,
    window: int | None = None,
    num_heads: int | None = None,
    cache: Callable[[int, int], Any] | None = None,
    expected_failures: Mapping[str, str] = {},
    arguments: Mapping[str, Any] = {},
) -> Report:
    """Check whether an attention is correct, and if it is not, report which bug it has and on which line.

    The target is called with small inputs, in float64 if it supports it. Only copies of it are run, and the random
    state and the settings of torch are restored afterwards.

    Args:
        target: A module; the class of a module, which is built from `arguments` and from values guessed by the names
            of the other parameters; a function of (query, key, value, …); or a module or model of transformers.
        example: Inputs to call the target with, if they cannot be guessed: a tensor, or a tuple of the arguments.
        causal: Whether no query may see a later key. By default, the target's own declarations decide.
        window: The number of keys that each query sees, including its own. By default, the target's own declarations
            decide.
        num_heads: The number of heads. By default, the target's own declarations decide.
        cache: A function of (batch size, capacity) that returns an empty cache, if the target takes an unusual one.
        expected_failures: The names of known findings, each with a reason. They do not count as bugs.
        arguments: The arguments of the constructor, if the target is a class.

    Returns:
        The findings, with proof and source line, and the facts about the target.

    Raises:
        ArgumentError: The target cannot be built or called, or an expected failure has a name that no finding has.

    Examples:
        >>> from heedful import check
        >>> def attend(query, key, value):
        ...     return (query @ key.mT).softmax(dim=-1) @ value
        >>> [finding.name for finding in check(attend).bugs]
        ['scale-missing']
    """
    expected = Expected(causal, window, num_heads)
    with undisturbed():
        try:
            evidence = evidence_of(
                target, example=example, expected=expected, cache=cache, arguments=arguments
            )
        except TargetError as error:
            name, runs = str(error), (_failed_call(error),)
        else:
            name = evidence.subject.name
            runs = tuple(run_probe(evidence, probe) for probe in PROBES)
    return Report(
        target=name,
        findings=tuple(root_causes(finding for run in runs for finding in run.findings)),
        facts=tuple(dict.fromkeys(fact for run in runs for fact in run.facts)),
        expected_failures=dict(expected_failures),
        probes=runs,
    )


def evidence_of(
    target: Any,
    *,
    example: Any = None,
    expected: Expected,
    cache: Callable[[int, int], Any] | None = None,
    arguments: Mapping[str, Any] = {},
) -> Evidence:
    """Return the evidence about a target; its arguments are those of `check`.

    Raises:
        ArgumentError: The target cannot be built or called.
        TargetError: A call that is shown to be valid fails in the target's code.
    """
    subject = find_subject(
        target, example=example, causal=expected.causal, cache=cache, arguments=arguments
    )
    return Evidence(subject, expected)


def run_probe(evidence: Evidence, probe: Probe) -> ProbeRun:
    """Put one probe to the evidence; an exception that the target raises is a finding, too."""
    start = time.perf_counter()
    answers: list[Finding | Fact] = []
    try:
        with within(PROBE_SECONDS):
            answers.extend(probe.ask(evidence))
    except Exception as error:  # noqa: BLE001 - a target may raise anything
        answers.append(_finding_on_exception(probe, error))
    return ProbeRun(
        name=probe.name,
        seconds=time.perf_counter() - start,
        findings=tuple(answer for answer in answers if isinstance(answer, Finding)),
        facts=tuple(answer for answer in answers if isinstance(answer, Fact)),
    )


def _failed_call(error: TargetError) -> ProbeRun:
    """Return the outcome for a target that raises in calls that are shown to be valid."""
    cause = error.__cause__ or error
    return ProbeRun("calling", 0.0, (_crash(cause, raising_line(cause)),))


def _finding_on_exception(probe: Probe, error: Exception) -> Finding:
    """Return the finding on an exception that a probe met.

    It is a bug only if no input could prevent it, because a probe may pass what the target need not accept.
    """
    if isinstance(error, TimeoutError):
        proof = f"The probe {probe.name!r} did not finish within {PROBE_SECONDS:.0f} s."
        return Finding(probe.finds[0], "not-testable", proof)
    if is_missing_name(error) or global_tensor_read(error) is not None:
        return _crash(error, raising_line(error))
    proof = f"The probe {probe.name!r} could not run: {described_with_line(error)}"
    return Finding(probe.finds[0], "not-testable", proof)


def _crash(error: BaseException, place: SourceLine | None) -> Finding:
    """Return the finding on an exception that the target raises on valid input."""
    description = describe_exception(error)
    global_read = global_tensor_read(error)
    if global_read is not None:
        name, line = global_read
        proof = f"It reads the global tensor {name!r}, which is the same for all inputs, and raises {description}"
        return Finding("undefined-or-global-name", "bug", proof, place=line)
    name = "undefined-or-global-name" if isinstance(error, NameError) else "crashes"
    return Finding(name, "bug", f"It raises {description}", place=place)
