"""The table of grades as one self-contained HTML page, with the report of each submission below its row."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from heedful.conformance.grading.grade import Grade
from heedful.conformance.grading.table import finding_of, row_of
from heedful.conformance.reporting.html import as_html

TEMPLATE = "grades.html.j2"


def as_page(grades: Sequence[Grade], *, entry: str, submissions: int) -> str:
    """Return the grades as an HTML page.

    Args:
        grades: The grades so far.
        entry: The name of the class or function that was checked.
        submissions: The number of all submissions.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("heedful.conformance.grading").joinpath(TEMPLATE).read_text("utf-8")
    return environment.from_string(source).render(
        grades=grades,
        entry=entry,
        submissions=submissions,
        row_of=row_of,
        finding_of=finding_of,
        report_of=lambda grade: None if grade.report is None else Markup(as_html(grade.report)),
        count_of=lambda status: sum(grade.status == status for grade in grades),
    )
