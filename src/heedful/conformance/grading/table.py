"""The table of grades as text, CSV and JSON, with one row for each submission."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from heedful.conformance.grading.grade import Grade
from heedful.conformance.reporting.finding import Finding
from heedful.screen import console_for, plain_table, printed, visible

COLUMNS = ("submission", "verdict", "findings", "remark")
STYLES: dict[str, str] = {"ok": "bold green", "bug": "bold red"}
FORMULA = "=+-@"
"""The characters that begin a formula in a spreadsheet."""


def as_text(grades: Sequence[Grade]) -> str:
    """Return the table as text, in the colors that stdout can show."""
    table = plain_table()
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for grade in grades:
        name, verdict, findings, remark = row_of(grade)
        style = STYLES.get(verdict, "yellow")
        table.add_row(Text(name), Text(verdict, style), Text(findings), Text(remark, "dim"))
    console = console_for(sys.stdout)
    console.print(table)
    return printed(console)


def as_csv(grades: Sequence[Grade]) -> str:
    """Return the table as CSV with a header. A spreadsheet takes no cell for a formula."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    for grade in grades:
        writer.writerow([f"'{it}" if it.startswith(tuple(FORMULA)) else it for it in row_of(grade)])
    return file.getvalue()


def as_json(grades: Sequence[Grade]) -> str:
    """Return the grades as a JSON document, with whole reports."""
    return json.dumps({"grades": [_as_dict(grade) for grade in grades]}, indent=1)


def row_of(grade: Grade) -> tuple[str, str, str, str]:
    """Return the cells of a submission's row: its name, the verdict, the findings with lines, and a remark."""
    findings = "; ".join(finding_of(grade, finding) for finding in grade.findings)
    return visible(grade.submission.name), grade.status, findings, visible(grade.remark)


def finding_of(grade: Grade, finding: Finding) -> str:
    """Return the name of a finding with its line, and its level unless it is a bug."""
    line = grade.line_of(finding)
    place = visible(f" ({line if ':' in line else f'line {line}'})") if line else ""
    return f"{finding.name}{place}{'' if finding.level == 'bug' else f', {finding.level}'}"


def _as_dict(grade: Grade) -> dict[str, Any]:
    return {
        "submission": grade.submission.name,
        "verdict": grade.status,
        "reason": grade.reason,
        "report": None if grade.report is None else grade.report.to_dict(),
    }
