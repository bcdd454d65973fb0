"""The report as one self-contained HTML page: the viewer's steps of every run, and a small attention to change."""

from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

import heedful
from heedful.tour.inputs import Tokens
from heedful.tour.recordings import RecordedRun, RungResult
from heedful.tour.report.report import TourReport
from heedful.viewer.page import View, embedded
from heedful.viewer.steps.recording import Recording

TEMPLATE: str = "page.html.j2"


def as_html(report: TourReport) -> str:
    """Return the whole report as an HTML page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        resources.files("heedful.tour.report").joinpath(TEMPLATE).read_text("utf-8")
    )
    views = {rung.name: views_of(result, report.tokens) for rung, result in report.results}
    parts = embedded([*(view for of_rung in views.values() for view in of_rung), View()])
    elements = iter(parts.views)
    return template.render(
        report=report,
        version=heedful.__version__,
        parts=parts,
        figures={
            name: [Figure(view.heading, next(elements)) for view in of_rung]
            for name, of_rung in views.items()
        },
        what_if=next(elements),
        largest_speedup=max(report.speed.speedups.values()),
    )


@dataclass(frozen=True)
class Figure:
    """A view of a rung: its heading, and the element that the script fills."""

    heading: str
    element: Markup


def views_of(result: RungResult, tokens: Tokens) -> list[View]:
    """Return the views of a rung: one for each run, or one with its two runs side by side."""
    recordings = [_recording(run, tokens) for run in result.runs]
    if result.beside:
        return [View(tuple(recordings), "Two routes, side by side")]
    return [View((recording,), recording.title) for recording in recordings]


def _recording(run: RecordedRun, tokens: Tokens) -> Recording:
    descriptions = {name: description.text for name, description in run.descriptions.items()}
    return Recording(run.title, run.trace, run.given, tokens.labels, descriptions)
