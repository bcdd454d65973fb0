"""The report as one self-contained HTML page: heat maps of every step, beside its source code."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import heedful
from heedful.drawing import STYLE, heat_map
from heedful.observation import Step
from heedful.shapes import times
from heedful.tour.inputs import Tokens
from heedful.tour.recordings import RecordedRun
from heedful.tour.report.matrices import labelled_matrix, short_path, step_title
from heedful.tour.report.report import TourReport

TEMPLATE: str = "page.html.j2"
MAX_NARROW_COLUMNS: int = 16  # a card with more columns takes a whole row


def as_html(report: TourReport) -> str:
    """Return the whole report as an HTML page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        resources.files("heedful.tour.report").joinpath(TEMPLATE).read_text("utf-8")
    )
    return template.render(
        report=report,
        version=heedful.__version__,
        style=Markup(STYLE),
        tokens_map=_tokens_map(report.tokens),
        cards_of=lambda run: [_card(step, run, report.tokens) for step in run.steps],
        listings_of=lambda run: [_listing(code) for code in run.code],
        largest_speedup=max(report.speed.speedups.values()),
    )


@dataclass(frozen=True)
class StepCard:
    """A step as the page shows it."""

    title: str
    shape: str
    description: str
    file: str
    line: int
    wide: bool
    picture: Markup


def _card(step: Step, run: RecordedRun, tokens: Tokens) -> StepCard:
    assert step.file is not None
    assert step.line is not None
    description = run.descriptions[step.name]
    matrix = labelled_matrix(step, description, tokens.labels)
    picture = heat_map(matrix.tensor, row_labels=matrix.rows, column_labels=matrix.columns)
    return StepCard(
        title=step_title(step),
        shape=times(step.shape),
        description=description.text,
        file=short_path(step.file),
        line=step.line,
        wide=len(matrix.columns) > MAX_NARROW_COLUMNS,
        picture=Markup(picture),
    )


def _tokens_map(tokens: Tokens) -> Markup:
    features = tuple(map(str, range(tokens.matrix.shape[1])))
    return Markup(heat_map(tokens.matrix, row_labels=tokens.labels, column_labels=features))


@dataclass(frozen=True)
class CodeListing:
    """The source of a function or class: its file, and its numbered and highlighted lines."""

    name: str
    file: str
    lines: tuple[tuple[int, Markup], ...]


def _listing(code: Callable[..., object]) -> CodeListing:
    lines, first = inspect.getsourcelines(code)
    source = "".join(lines)
    highlighted = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True))
    docstring = _docstring_lines(source)
    numbered = [
        (first + index, Markup(line))
        for index, line in enumerate(highlighted.splitlines())
        if index not in docstring
    ]
    return CodeListing(code.__qualname__, short_path(inspect.getfile(code)), tuple(numbered))


def _docstring_lines(source: str) -> range:
    """Return the lines of the docstring, which the page omits because it explains each rung itself."""
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef | ast.FunctionDef)
    if ast.get_docstring(definition) is None:
        return range(0)
    docstring = definition.body[0]
    assert docstring.end_lineno is not None
    return range(docstring.lineno - 1, docstring.end_lineno)
