"""A check as tests of one's own: one for each probe, in pytest.

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

from heedful.conformance.check import check
from heedful.conformance.probes import PROBES
from heedful.conformance.probes.probe import Probe
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.text import finding_as_text
from heedful.errors import MissingExtraError

if TYPE_CHECKING:
    import pytest


def parametrize(target: Any, **options: Any) -> pytest.MarkDecorator:
    """Give a test function one case a probe; it takes the argument `probe` and calls it.

    The target is checked once, when the first case runs. A case raises AssertionError with the findings, at level bug,
    that its probe made and no other finding explains: so one bug fails one test. A finding that is expected makes its
    case an expected failure (xfail); one that is expected and does not occur any more fails.

    Args:
        target: what `heedful.check` takes, or a function without parameters that makes it.
        options: of `heedful.check`.

    Raises:
        MissingExtraError: pytest is not installed.
    """
    try:
        import pytest
    except ImportError as error:
        raise MissingExtraError("heedful.conformance.pytest", "test") from error

    @functools.cache
    def report() -> Report:
        return check(target() if _is_factory(target) else target, **options)

    cases = [pytest.param(Case(it, report), id=it.name.replace(" ", "-")) for it in PROBES]
    return pytest.mark.parametrize("probe", cases)


class Case:
    """One probe of a check, as a test calls it."""

    def __init__(self, probe: Probe, report: Callable[[], Report]) -> None:
        self.probe, self._report = probe, report

    def __call__(self) -> None:
        """Raise AssertionError if the probe found a bug, or no longer finds one that is expected."""
        __tracebackhide__ = True
        import pytest

        report = self._report()
        own = [run for run in report.probes if run.name == self.probe.name]
        runs = own or report.probes  # no probe ran: what kept them from it fails every case
        found = [finding for run in runs for finding in run.findings]
        bugs = [finding for finding in found if finding in report.bugs]
        if bugs:
            raise AssertionError("\n\n".join(map(finding_as_text, bugs)))
        gone = [name for name in report.no_longer_failing if _first_to_find(name) is self.probe]
        if gone:
            raise AssertionError(f"expected to fail, and no longer failing: {', '.join(gone)}")
        for finding in found:
            if finding in report.findings and finding.name in report.expected_failures:
                pytest.xfail(f"{finding.name}: {report.expected_failures[finding.name]}")

    def __repr__(self) -> str:
        return f"<probe {self.probe.name}: {self.probe.meaning}>"


def _is_factory(target: Any) -> bool:
    """Whether it makes a target rather than being one: attention takes arguments."""
    if inspect.isclass(target) or isinstance(target, nn.Module):
        return False
    return not inspect.signature(target).parameters


def _first_to_find(name: str) -> Probe:
    """The probe that answers for a name; the first of all where any may find it, as with `crashes`."""
    return next((probe for probe in PROBES if name in probe.finds), PROBES[0])
