"""The grade of one submission: what the check says about it, whatever the submission does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from heedful.conformance.grading.submissions import Submission
from heedful.conformance.own_process import Limits, NoAnswerError, check_in_own_process
from heedful.conformance.recording.location import location_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.conformance.reporting.report import Report
from heedful.errors import HeedfulError

Status = Literal["ok", "bug", "could not be called", "crashed", "timed out"]


@dataclass(frozen=True)
class Grade:
    """What the check says about a submission.

    Attributes:
        submission: The submission.
        status: "ok", "bug", or why there is no report.
        report: The report, with places in the submission's own files; None if there is none.
        reason: Why there is no report; "" if there is one.
    """

    submission: Submission
    status: Status
    report: Report | None = None
    reason: str = ""

    @property
    def findings(self) -> list[Finding]:
        """The bugs, and then what is suspicious."""
        if self.report is None:
            return []
        return [
            it
            for it in self.report.findings
            if it.level in ("bug", "suspicious") and it.name not in self.report.expected_failures
        ]

    @property
    def remark(self) -> str:
        """The summary of the report, or why there is none."""
        return self.reason if self.report is None else self.report.summary

    def line_of(self, finding: Finding) -> str:
        """Return the line of a finding: its number, with the file if the submission has several; "" if unknown."""
        place, path = finding.place, self.submission.path
        if place is None:
            return ""
        if Path(place.file) == path.resolve():
            return str(place.line)
        if Path(place.file).is_relative_to(path.resolve()):
            return f"{Path(place.file).relative_to(path.resolve())}:{place.line}"
        return location_of(place)


def graded(
    submission: Submission,
    entry: str,
    *,
    arguments: Mapping[str, str],
    options: Mapping[str, Any],
    example: str,
    limits: Limits,
) -> Grade:
    """Check a copy of a submission in a process of its own, and return the grade.

    Args:
        submission: The submission.
        entry: The name of the class or function to check.
        arguments: The arguments of the constructor, as text.
        options: Other options of `check`.
        example: The arguments of a call as a Python expression; "" if they are not given.
        limits: What the process may use.
    """
    origin = str(submission.path.resolve().parent)
    copied = origin
    try:
        with submission.copied() as folder:
            copied = str(folder)
            report = check_in_own_process(
                submission.target(folder, entry),
                arguments=arguments,
                options=options,
                example=example,
                limits=limits,
                folder=folder,
                quiet=True,
            )
    except NoAnswerError as error:
        status = "timed out" if error.code is None else "crashed"
        return Grade(submission, status, reason=error.end.removeprefix("which "))
    except HeedfulError as error:
        reason = str(error).replace(copied, origin)
        return Grade(submission, "could not be called", reason=reason)
    return Grade(submission, "ok" if report.ok else "bug", _moved(report, copied, origin))


def _moved(report: Report, copied: str, origin: str) -> Report:
    """Return a report with the places of its findings and of the lines that did not run in the original files."""

    def moved(place: SourceLine) -> SourceLine:
        return replace(place, file=place.file.replace(copied, origin))

    findings = [replace(it, place=it.place and moved(it.place)) for it in report.findings]
    coverage = report.coverage
    if coverage is not None:
        missed = [replace(it, place=moved(it.place)) for it in coverage.missed]
        coverage = replace(coverage, missed=tuple(missed))
    return replace(report, findings=tuple(findings), coverage=coverage)
