"""The tour as one HTML page that needs nothing else: heat maps of every step, beside the code that made it."""

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
from heedful.tour.arranging import arrange, short_path, step_title
from heedful.tour.inputs import Tokens
from heedful.tour.report import Report
from heedful.tour.walks import Walk

TEMPLATE = "page.html.j2"
WIDE = 16  # columns; a card with more takes a whole row


def as_html(report: Report) -> str:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        resources.files("heedful.tour").joinpath(TEMPLATE).read_text("utf-8")
    )
    return template.render(
        report=report,
        version=heedful.__version__,
        style=Markup(STYLE),
        tokens_map=_tokens_map(report.tokens),
        steps_of=lambda walk: [_card(step, walk, report.tokens) for step in walk.steps],
        listings_of=lambda walk: [_listing(code) for code in walk.code],
        largest_speedup=max(report.timing.speedups.values()),
    )


@dataclass(frozen=True)
class Card:
    """A step as the page shows it."""

    title: str
    shape: str
    meaning: str
    file: str
    line: int
    wide: bool
    picture: Markup


def _card(step: Step, walk: Walk, tokens: Tokens) -> Card:
    assert step.file is not None
    assert step.line is not None
    meaning = walk.meanings[step.name]
    arranged = arrange(step, meaning, tokens.labels)
    picture = heat_map(arranged.tensor, row_labels=arranged.rows, column_labels=arranged.columns)
    return Card(
        title=step_title(step),
        shape=times(step.shape),
        meaning=meaning.text,
        file=short_path(step.file),
        line=step.line,
        wide=len(arranged.columns) > WIDE,
        picture=Markup(picture),
    )


def _tokens_map(tokens: Tokens) -> Markup:
    features = tuple(map(str, range(tokens.matrix.shape[1])))
    return Markup(heat_map(tokens.matrix, row_labels=tokens.labels, column_labels=features))


@dataclass(frozen=True)
class Listing:
    """Some source: its file, and its lines, numbered and highlighted."""

    name: str
    file: str
    lines: tuple[tuple[int, Markup], ...]


def _listing(code: Callable[..., object]) -> Listing:
    lines, first = inspect.getsourcelines(code)
    highlighted = highlight(
        "".join(lines), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)
    ).splitlines()
    left_out = _docstring_lines("".join(lines))
    numbered = [
        (first + index, Markup(line))
        for index, line in enumerate(highlighted)
        if index not in left_out
    ]
    return Listing(code.__qualname__, short_path(inspect.getfile(code)), tuple(numbered))


def _docstring_lines(source: str) -> range:
    """Which lines hold the docstring: the page says in its own words what a rung means."""
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef | ast.FunctionDef)
    if ast.get_docstring(definition) is None:
        return range(0)
    docstring = definition.body[0]
    assert docstring.end_lineno is not None
    return range(docstring.lineno - 1, docstring.end_lineno)
