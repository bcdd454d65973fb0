"""The walk of a check: find out how to call the target, observe it, ask every probe, tell causes from consequences."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from heedful.conformance.calling.exceptions import (
    describe_exception,
    global_tensor_read,
    raising_line,
)
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
from heedful.errors import ArgumentError

SECONDS = 10.0  # for one probe: a hundred times what one takes on a small module


def check(
    target: nn.Module | type[nn.Module] | Callable[..., Any],
    *,
    example: Any = None,
    causal: bool | None = None,
    window: int | None = None,
    num_heads: int | None = None,
    cache: Any = None,
    expected_failures: Mapping[str, str] = {},
    arguments: Mapping[str, Any] = {},
) -> Report:
    """Say whether an attention is right, and if not, which bug it has, on which line.

    The target is only imported and called, on copies, on small inputs in float64: its state, the random state and
    torch's settings are as before afterwards.

    Args:
        target: a module; the class of one, built from `arguments` and conventional names; a function of (query, key,
            value, …); a module or model of transformers.
        example: inputs to call it with, where these cannot be guessed: a tensor, or a tuple of the arguments.
        causal: whether no query may see a later key; None: as the target itself declares.
        window: how many keys each query sees, its own included; None: as the target itself declares.
        num_heads: how many heads there are; None: as the target itself declares.
        cache: makes an empty cache, called with (batch, capacity), where the target's is not one of the usual ones.
        expected_failures: names of findings that are known, each with a reason: they count as no bugs.
        arguments: the constructor's, where the target is a class.

    Raises:
        ArgumentError: the target cannot be built or called, or an expected failure has a name that there is none of.
    """
    expected = Expected(causal, window, num_heads)
    with undisturbed():
        try:
            evidence = evidence_of(
                target, example=example, expected=expected, cache=cache, arguments=arguments
            )
        except TargetError as error:
            name, runs = str(error), (_uncallable(error),)
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


def _uncallable(error: TargetError) -> ProbeRun:
    """The one finding of a target that cannot be run at all.

    Raises:
        ArgumentError: nothing says that it is the target's fault.
    """
    cause = error.__cause__
    place = None if cause is None else raising_line(cause)
    if cause is None or place is None:
        raise ArgumentError(
            "target",
            expected="a call that works and gives one row for each token",
            received=f"from {error}: {cause and describe_exception(cause)}",
            remedy="Give an example of its arguments: example=….",
        ) from error
    return ProbeRun("calling", 0.0, (_crash(cause, place),))


def evidence_of(
    target: Any, *, example: Any, expected: Expected, cache: Any, arguments: Mapping[str, Any]
) -> Evidence:
    """What the probes of a target look at.

    Raises:
        ArgumentError: the target cannot be built or called.
    """
    subject = find_subject(
        target, example=example, causal=expected.causal, cache=cache, arguments=arguments
    )
    return Evidence(subject, expected)


def run_probe(evidence: Evidence, probe: Probe) -> ProbeRun:
    """Ask one probe; what it raises is a finding."""
    began = time.perf_counter()
    found: list[Finding | Fact] = []
    try:
        with within(SECONDS):
            found.extend(probe.ask(evidence))
    except Exception as error:  # noqa: BLE001 - whatever the target raises tells about the target
        found.append(_raised(probe, error))
    return ProbeRun(
        name=probe.name,
        seconds=time.perf_counter() - began,
        findings=tuple(it for it in found if isinstance(it, Finding)),
        facts=tuple(it for it in found if isinstance(it, Fact)),
    )


def _raised(probe: Probe, error: Exception) -> Finding:
    """What an exception within a probe says about the target, or about the probe."""
    if isinstance(error, TimeoutError):
        proof = f"The probe {probe.name!r} was not done after {SECONDS:.0f} s."
        return Finding(probe.finds[0], "not-testable", proof)
    place = raising_line(error)
    if place is None:
        proof = f"The probe {probe.name!r} could not be carried out: {describe_exception(error)}"
        return Finding(probe.finds[0], "not-testable", proof)
    return _crash(error, place)


def _crash(error: BaseException, place: SourceLine) -> Finding:
    """A finding on what a target raises, whatever it is given."""
    read = global_tensor_read(error)
    if read is not None:
        name, line = read
        proof = f"It reads the global tensor {name!r}, the same for all tokens, and raises {describe_exception(error)}"
        return Finding("undefined-or-global-name", "bug", proof, "", line)
    name = "undefined-or-global-name" if isinstance(error, NameError) else "crashes"
    return Finding(name, "bug", f"It raises {describe_exception(error)}", "", place)
