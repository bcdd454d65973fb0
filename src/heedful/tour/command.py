"""The command `heedful tour`: from options to a report that is printed and written."""

import sys
from contextlib import nullcontext
from pathlib import Path

from heedful.errors import ArgumentError
from heedful.screen import print_out, progress
from heedful.tour import inputs, minilm
from heedful.tour.ladder import LADDER, LADDER_OF_A_TEXT, choose_rungs
from heedful.tour.report.html import as_html
from heedful.tour.report.json import as_json
from heedful.tour.report.text import as_text
from heedful.tour.run import run_tour
from heedful.writing import reserved


def tour(
    *,
    rung: str | None,
    input: Path | None,
    labels: str | None = None,
    text: str | None,
    html: Path | None,
    json: bool,
) -> bool:
    """Run the tour, write its page, and print it.

    Args:
        rung: The name of one rung. None: all rungs.
        input: A file with the token matrix.
        labels: Words for its tokens, separated by spaces.
        text: A text for which MiniLM provides the token vectors and its own heads. Without `input` and `text`: the
            built-in sentence.
        html: The file to which the page is written. None: no file.
        json: Print one JSON document instead of text.

    Returns:
        Whether all routes agree.

    Raises:
        ArgumentError: An option cannot be used. This is found before the work begins.
        MissingExtraError: `text` needs an extra that is not installed.
    """
    rungs = choose_rungs(rung, LADDER if text is None else LADDER_OF_A_TEXT)
    tokens = _tokens(input, labels, text)
    with nullcontext() if html is None else reserved(html, "--html") as write:
        with progress(len(rungs) + 1) as announce:
            report = run_tour(tokens, rungs, announce)
        if write is not None:
            write(as_html(report))
    print_out(as_json(report) if json else as_text(report, sys.stdout, html))
    return not report.disagreements


def _tokens(file: Path | None, labels: str | None, text: str | None) -> inputs.Tokens:
    """Return the tokens from the file, the text, or the built-in sentence."""
    if file is not None and text is not None:
        raise ArgumentError(
            "--input, --text",
            expected="one of the two",
            received="both",
            remedy="Pass either a matrix or a text.",
        )
    if file is not None:
        return inputs.read_tokens(file, labels)
    if labels is not None:
        raise ArgumentError(
            "--labels",
            expected="the words of a matrix",
            received="no --input",
            remedy="Pass the matrix as --input; the words of a text label its tokens.",
        )
    return inputs.sentence() if text is None else minilm.embed(text)
