"""The result of a check: its findings, its facts, and the outcome of each probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heedful.conformance.recording.coverage import Coverage
from heedful.conformance.reporting.catalogue import find_entry
from heedful.conformance.reporting.finding import LEVELS, Fact, Finding
from heedful.conformance.reporting.fix import Fix

EXIT_OK, EXIT_BUGS = 0, 1
CALLING = "calling"
"""The name that stands for the probes if a bug ends every call of the target."""
CONSTRUCTION = "construction"
"""The name that stands for the probes if the check knows no call of the target."""


@dataclass(frozen=True)
class ProbeRun:
    """The outcome of one probe.

    Attributes:
        name: The name of the probe.
        seconds: The time that it took.
        findings: All its findings, including those that another finding explains.
        facts: What it found out about the target.
    """

    name: str
    seconds: float
    findings: tuple[Finding, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def outcome(self) -> str:
        """The worst level among its findings; "passed" if there are none."""
        levels = {finding.level for finding in self.findings}
        return next((level for level in LEVELS if level in levels), "passed")


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    Attributes:
        target: The name of the target.
        findings: The findings that no other one explains. Bugs come first; within a level, causes come first.
        facts: The properties of the target, whether right or wrong.
        expected_failures: The names of known findings, each with a reason. They do not count as bugs.
        probes: The outcomes of all probes.
        fixes: Edits that mend bugs, each proved by another check on top of the previous ones; None if none were
            looked for.
        coverage: What of the target the probes ran; None if that is unknown.

    Raises:
        ArgumentError: An expected failure has a name that no finding has.
    """

    target: str
    findings: tuple[Finding, ...]
    facts: tuple[Fact, ...] = ()
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    probes: tuple[ProbeRun, ...] = ()
    fixes: tuple[Fix, ...] | None = None
    coverage: Coverage | None = None

    def __post_init__(self) -> None:
        for name in self.expected_failures:
            find_entry(name, "expected_failures")
        ordered = sorted(self.findings, key=lambda finding: LEVELS.index(finding.level))
        object.__setattr__(self, "findings", tuple(ordered))

    @property
    def bugs(self) -> tuple[Finding, ...]:
        """The findings at level "bug" that are not expected."""
        return tuple(
            finding
            for finding in self.findings
            if finding.level == "bug" and finding.name not in self.expected_failures
        )

    @property
    def blocking_bug(self) -> Finding | None:
        """The bug that ends every call, so that no probe was asked; None if there is none."""
        ended = [run.name for run in self.probes] == [CALLING]
        return self.findings[0] if ended and self.findings else None

    @property
    def unfixed(self) -> tuple[Finding, ...]:
        """The bugs that no fix mends."""
        mended = {fix.finding for fix in self.fixes or ()}
        return tuple(bug for bug in self.bugs if bug.name not in mended)

    @property
    def ok(self) -> bool:
        """True if there are no bugs other than expected ones."""
        return not self.bugs

    @property
    def exit_code(self) -> int:
        """The exit code of `heedful check`: 0 if `ok`, otherwise 1."""
        return EXIT_OK if self.ok else EXIT_BUGS

    @property
    def no_longer_failing(self) -> tuple[str, ...]:
        """The expected failures that no probe found, not even as a consequence of another finding."""
        names = {finding.name for run in self.probes for finding in run.findings}
        names.update(finding.name for finding in self.findings)
        return tuple(name for name in self.expected_failures if name not in names)

    @property
    def summary(self) -> str:
        """The number of findings at each level, such as "2 bugs, 1 convention" or "no bug".

        If some lines did not run, it is "no bug in 18 of 22 lines".
        """
        unexpected = [
            finding for finding in self.findings if finding.name not in self.expected_failures
        ]
        levels = [finding.level for finding in unexpected]
        counts = {level: levels.count(level) for level in LEVELS}
        bugs = counts.pop("bug")
        parts = [f"{bugs} bug{'s' if bugs > 1 else ''}" if bugs else f"no bug{self._extent}"]
        parts += [f"{count} {level}" for level, count in counts.items() if count]
        if expected := len(self.findings) - len(unexpected):
            parts.append(f"{expected} expected")
        return ", ".join(parts)

    @property
    def _extent(self) -> str:
        """What "no bug" is said of, if that is not every line."""
        coverage = self.coverage
        if coverage is None or not coverage.missed:
            return ""
        return f" in {coverage.ran} of {coverage.lines} lines"
