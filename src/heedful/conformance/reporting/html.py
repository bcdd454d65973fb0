"""The report of a check as HTML for a notebook, without scripts, on light and dark backgrounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template

from heedful.conformance.recording.location import location_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.catalogue import remedy_of
from heedful.conformance.reporting.result import CheckResult
from heedful.conformance.reporting.text import not_exercised

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
        number: The line number, padded to the width of the largest one in the excerpt.
        source: The text of the line.
        marked: True for the line of the finding.
    """

    number: str
    source: str
    marked: bool


def excerpt_of(place: SourceLine) -> list[ExcerptLine]:
    """Return a line with its neighbours, or the line alone if the file cannot be read."""
    lines = place.surrounding(CONTEXT_LINES)
    width = len(str(lines[-1][0]))
    return [
        ExcerptLine(f"{number:>{width}}", source, number == place.line) for number, source in lines
    ]
