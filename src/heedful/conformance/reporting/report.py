"""What a check says: findings, facts, and how each probe went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from heedful.conformance.reporting.catalogue import explained, remedy_of
from heedful.conformance.reporting.finding import LEVELS, Fact, Finding

NO_BUG, BUGS = 0, 1  # exit codes


@dataclass(frozen=True)
class ProbeRun:
    """How one probe went.

    Attributes:
        name: the probe's.
        seconds: how long it took.
        findings: all that it found, consequences of other findings among them.
        facts: what it learnt about the target.
    """

    name: str
    seconds: float
    findings: tuple[Finding, ...] = ()
    facts: tuple[Fact, ...] = ()

    @property
    def outcome(self) -> str:
        """The worst level among its findings; "passed" without any."""
        levels = {finding.level for finding in self.findings}
        return next((level for level in LEVELS if level in levels), "passed")


@dataclass(frozen=True, repr=False)
class Report:
    """What a check says. `print(report)` shows it as text, a notebook as HTML.

    Attributes:
        target: the name of what was checked.
        findings: those that no other one explains: bugs first, and within a level in order of cause.
        facts: what the target does, right or wrong.
        expected_failures: names of findings that are known, each with a reason: they count as no bugs.
        probes: every probe that ran.

    Raises:
        ArgumentError: there is no finding of the name of an expected failure.
    """

    target: str
    findings: tuple[Finding, ...]
    facts: tuple[Fact, ...] = ()
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    probes: tuple[ProbeRun, ...] = ()

    def __post_init__(self) -> None:
        for name in self.expected_failures:
            explained(name, "expected_failures")
        ordered = sorted(self.findings, key=lambda finding: LEVELS.index(finding.level))
        object.__setattr__(self, "findings", tuple(ordered))

    @property
    def bugs(self) -> tuple[Finding, ...]:
        """The findings at level "bug" that were not expected."""
        return tuple(
            it
            for it in self.findings
            if it.level == "bug" and it.name not in self.expected_failures
        )

    @property
    def ok(self) -> bool:
        """Whether there is no bug but the expected ones."""
        return not self.bugs

    @property
    def exit_code(self) -> int:
        """0: no bug but the expected ones; 1: bugs."""
        return NO_BUG if self.ok else BUGS

    @property
    def no_longer_failing(self) -> tuple[str, ...]:
        """Expected failures that no probe found, not even as a consequence of something else."""
        found = {it.name for run in self.probes for it in run.findings}
        found.update(it.name for it in self.findings)
        return tuple(name for name in self.expected_failures if name not in found)

    @property
    def summary(self) -> str:
        """How many findings of which kind: "2 bugs, 1 convention", or "no bug"."""
        unexpected = [it for it in self.findings if it.name not in self.expected_failures]
        counts = {level: sum(it.level == level for it in unexpected) for level in LEVELS}
        bugs = counts.pop("bug")
        said = [f"{bugs} bug{'s' * (bugs > 1)}" if bugs else "no bug"]
        said += [f"{count} {level}" for level, count in counts.items() if count]
        if expected := len(self.findings) - len(unexpected):
            said.append(f"{expected} expected")
        return ", ".join(said)

    def to_dict(self) -> dict[str, Any]:
        """All of it, in what JSON can hold; a finding's `expected` is the reason, or None."""
        return {
            "target": self.target,
            "ok": self.ok,
            "findings": [
                {
                    **asdict(finding),
                    "remedy": remedy_of(finding),
                    "expected": self.expected_failures.get(finding.name),
                }
                for finding in self.findings
            ],
            "facts": [asdict(fact) for fact in self.facts],
            "no_longer_failing": list(self.no_longer_failing),
            "probes": [
                {
                    "name": run.name,
                    "seconds": round(run.seconds, 3),
                    "outcome": run.outcome,
                    "found": [finding.name for finding in run.findings],
                }
                for run in self.probes
            ],
        }

    def to_json(self) -> str:
        """`to_dict` as one JSON document."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=1)

    def __str__(self) -> str:
        from heedful.conformance.reporting.text import as_text  # rich takes its time to import

        return as_text(self)

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(finding.name for finding in self.bugs))
        return f"Report({self.target}: {self.summary}{names and f': {names}'})"

    def _repr_html_(self) -> str:
        from heedful.conformance.reporting.html import as_html

        return as_html(self)
