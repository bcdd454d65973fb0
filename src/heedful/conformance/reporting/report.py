"""The report of a check, as text, HTML and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from heedful.conformance.reporting.catalogue import remedy_of
from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.fix import Fix
from heedful.conformance.reporting.result import CheckResult, ProbeRun


class Report(CheckResult):
    """The report of a check, which `heedful.check` returns.

    `print(report)` prints it as text, and a notebook shows it as HTML. `CheckResult` documents its attributes.

    Examples:
        >>> from heedful.conformance import Finding, Report
        >>> report = Report("Attention", (Finding("scale-missing", "bug", "The logits equal query · key."),))
        >>> report
        Report(Attention: 1 bug: scale-missing)
        >>> report.ok, report.exit_code
        (False, 1)
    """

    def to_dict(self) -> dict[str, Any]:
        """Return everything in the report as values that JSON can hold.

        Returns:
            The fields of the report by name. In each finding, "expected" is the reason why it is expected, or None.
            Each of the fixes has the name of its finding, the file and the unified diff.
        """
        return {
            "target": self.target,
            "ok": self.ok,
            "findings": [self._finding_to_dict(finding) for finding in self.findings],
            "facts": [asdict(fact) for fact in self.facts],
            "no_longer_failing": list(self.no_longer_failing),
            "coverage": None if self.coverage is None else asdict(self.coverage),
            "probes": [_probe_run_to_dict(run) for run in self.probes],
            "fixes": None if self.fixes is None else [_fix_to_dict(fix) for fix in self.fixes],
        }

    def to_json(self) -> str:
        """Return `to_dict` as a JSON document."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=1)

    def _finding_to_dict(self, finding: Finding) -> dict[str, Any]:
        return {
            **asdict(finding),
            "remedy": remedy_of(finding),
            "expected": self.expected_failures.get(finding.name),
        }

    def __str__(self) -> str:
        from heedful.conformance.reporting.text import as_text  # rich takes long to import

        return as_text(self)

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(finding.name for finding in self.bugs))
        return f"Report({self.target}: {self.summary}{names and f': {names}'})"

    def _repr_html_(self) -> str:
        from heedful.conformance.reporting.html import as_html  # so does jinja2

        return as_html(self)


def _fix_to_dict(fix: Fix) -> dict[str, str]:
    return {"finding": fix.finding, "file": fix.file, "diff": fix.diff}


def _probe_run_to_dict(run: ProbeRun) -> dict[str, Any]:
    return {
        "name": run.name,
        "seconds": round(run.seconds, 3),
        "outcome": run.outcome,
        "found": [finding.name for finding in run.findings],
    }
