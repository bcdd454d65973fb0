"""The report of a check as HTML for a notebook, without scripts, on light and dark backgrounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from heedful.conformance.recording.location import location_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.catalogue import remedy_of
from heedful.conformance.reporting.result import CheckResult
from heedful.conformance.reporting.text import not_exercised
from heedful.listing import highlighted

TEMPLATE = "report.html.j2"
CONTEXT_LINES = 2
"""The number of source lines that are shown before and after the line of a finding."""


def as_html(result: CheckResult) -> str:
    """Return the whole report as one HTML element with its own style."""
    return _template().render(
        result=result,
        remedy_of=remedy_of,
        location_of=location_of,
        excerpt_of=excerpt_of,
        not_exercised=not_exercised,
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = resources.files("heedful.conformance.reporting").joinpath(TEMPLATE).read_text("utf-8")
    return environment.from_string(source)


@dataclass(frozen=True)
class ExcerptLine:
    """A line of an excerpt of source code.

    Attributes:
        number: The line number.
        code: The text of the line, highlighted.
        marked: True for the line of the finding.
    """

    number: int
    code: Markup
    marked: bool


def excerpt_of(place: SourceLine) -> list[ExcerptLine]:
    """Return a line with its neighbours, or the line alone if the file cannot be read."""
    lines = place.surrounding(CONTEXT_LINES)
    source = "\n".join(text for _, text in lines)
    return [
        ExcerptLine(number, code, number == place.line)
        for number, code in highlighted(source, lines[0][0])
    ]
