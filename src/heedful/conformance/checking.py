"""The walk of a check: find out how to call the target, observe it, ask every probe, tell causes from consequences."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from torch import nn

from heedful.conformance import probes as _probes  # noqa: F401 - enters every probe
from heedful.conformance.calling import subject_of
from heedful.conformance.causes import causes
from heedful.conformance.evidence import Evidence
from heedful.conformance.expectations import Told
from heedful.conformance.finding import Fact, Finding, Place
from heedful.conformance.isolation import undisturbed, within
from heedful.conformance.probing import PROBES, Probe
from heedful.conformance.report import ProbeRun, Report

OURS = (
    "torch",
    "heedful.conformance",
    "heedful.observation",
)  # code that only carries out a target's lines
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
    with undisturbed():
        evidence = evidence_of(
            target,
            example=example,
            told=Told(causal, window, num_heads),
            cache=cache,
            arguments=arguments,
        )
        runs = [run_probe(evidence, probe) for probe in PROBES]
    return Report(
        target=evidence.subject.name,
        findings=tuple(causes(finding for run in runs for finding in run.findings)),
        facts=tuple(dict.fromkeys(fact for run in runs for fact in run.facts)),
        expected_failures=dict(expected_failures),
        probes=tuple(runs),
    )


def evidence_of(
    target: Any, *, example: Any, told: Told, cache: Any, arguments: Mapping[str, Any]
) -> Evidence:
    """What the probes of a target look at.

    Raises:
        ArgumentError: the target cannot be built or called.
    """
    subject = subject_of(
        target, example=example, causal=told.causal, num_heads=told.num_heads, cache=cache, arguments=arguments
    )  # fmt: skip
    return Evidence(subject, told)


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
    place = where_raised(error)
    said = traceback.format_exception_only(error)[0].strip()
    if place is None:
        return Finding(
            probe.finds[0], "not-testable", f"The probe {probe.name!r} could not be carried out: {said}"
        )  # fmt: skip
    name = "undefined-or-global-name" if isinstance(error, NameError) else "crashes"
    return Finding(name, "bug", f"It raises {said}", "", place)


def where_raised(error: BaseException) -> Place | None:
    """The innermost line of a target's own code that an exception passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    modules = [it.f_globals.get("__name__", "") for it in _frames(error.__traceback__)]
    for frame, module in reversed(list(zip(frames, modules, strict=True))):
        if not module.startswith(OURS) and frame.lineno is not None:
            return Place(frame.filename, frame.lineno, (frame.line or "").strip())
    return None


def _frames(tb: TracebackType | None) -> list[Any]:
    found = []
    while tb is not None:
        found.append(tb.tb_frame)
        tb = tb.tb_next
    return found
