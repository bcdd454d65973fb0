"""Checks as tests: one pytest case for each probe.

from heedful.conformance.pytest import parametrize

@parametrize(MyAttention(16, 4), causal=True)
def test_attention(probe):
    probe()
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from heedful.conformance.checking import COVERAGE, check
from heedful.conformance.probes import PROBES
from heedful.conformance.probes.probe import Probe
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.text import finding_as_text
from heedful.errors import MissingExtraError

if TYPE_CHECKING:
    import pytest


LINES = Probe(COVERAGE, ("lines-not-run",), lambda evidence: iter(()))
"""The case of a strict check that fails if some lines did not run; `check` itself finds that out."""


def parametrize(target: Any, **options: Any) -> pytest.MarkDecorator:
    """Return a decorator that gives a test function one case for each probe, and one for the coverage if it is strict.

    The test function takes the argument `probe` and calls it. The target is checked once, when the first case runs. A
    case raises AssertionError if its probe found a bug that no other finding explains, so that one bug fails one test.
    If the bug is expected, the case is an expected failure (xfail). If an expected bug no longer occurs, the case
    fails.

    Args:
        target: A target that `heedful.check` takes, or a function without parameters that returns one.
        options: The options of `heedful.check`.

    Returns:
        The mark, as `pytest.mark.parametrize` returns it.

    Raises:
        MissingExtraError: pytest is not installed.

    Examples:
        >>> from heedful.conformance.pytest import parametrize
        >>> from heedful.textbook import CausalAttention
        >>> @parametrize(CausalAttention(3, 2, context_length=16), causal=True)
        ... def test_attention(probe):
        ...     probe()
    """
    try:
        import pytest
    except ImportError as error:
        raise MissingExtraError("heedful.conformance.pytest", "test") from error

    @functools.cache
    def report() -> Report:
        return check(target() if _is_factory(target) else target, **options)

    probes = (*PROBES, LINES) if options.get("strict") else PROBES
    cases = [
        pytest.param(ProbeCase(probe, report), id=probe.name.replace(" ", "-")) for probe in probes
    ]
    return pytest.mark.parametrize("probe", cases)


class ProbeCase:
    """One probe of a check, which a test calls.

    Args:
        probe: The probe.
        report: A function that returns the report of the check.
    """

    def __init__(self, probe: Probe, report: Callable[[], Report]) -> None:
        self.probe: Probe = probe
        self._report = report

    def __call__(self) -> None:
        """Raise AssertionError if the probe found a bug, or if a bug that it should find no longer occurs."""
        __tracebackhide__ = True
        import pytest

        report = self._report()
        own_runs = [run for run in report.probes if run.name == self.probe.name]
        # If the target cannot be called, no probe ran, and every case fails.
        runs = own_runs or report.probes
        findings = [finding for run in runs for finding in run.findings]
        bugs = [finding for finding in findings if finding in report.bugs]
        if bugs:
            raise AssertionError("\n\n".join(map(finding_as_text, bugs)))
        fixed = [name for name in report.no_longer_failing if _probe_of(name) is self.probe]
        if fixed:
            raise AssertionError(f"Expected failures that no longer fail: {', '.join(fixed)}")
        for finding in findings:
            if finding in report.findings and finding.name in report.expected_failures:
                pytest.xfail(f"{finding.name}: {report.expected_failures[finding.name]}")

    def __repr__(self) -> str:
        return f"<probe {self.probe.name}: {self.probe.meaning}>"


def _is_factory(target: Any) -> bool:
    """Check whether a target is a function without parameters, which returns the target proper."""
    if inspect.isclass(target) or isinstance(target, nn.Module):
        return False
    return not inspect.signature(target).parameters


def _probe_of(name: str) -> Probe:
    """Return the first probe that looks for a finding; the first one of all if every probe may find it."""
    return next((probe for probe in PROBES if name in probe.finds), PROBES[0])
