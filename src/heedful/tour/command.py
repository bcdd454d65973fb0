"""The tour as the command line gives it: from options to a report, printed and written."""

import sys
from contextlib import nullcontext
from pathlib import Path

from heedful.errors import ArgumentError
from heedful.screen import print_out, progress
from heedful.tour import document, inputs, ladder, minilm, page, terminal
from heedful.tour.report import take
from heedful.writing import reserved


def guide(
    *, rung: str | None, input: Path | None, text: str | None, html: Path | None, json: bool
) -> bool:
    """Take the tour, write its page, print it; say whether all routes agree.

    Args:
        rung: the name of one rung; None: all.
        input: a file that holds the token matrix.
        text: a text whose token vectors MiniLM looks up. Without either: the sentence in the package.
        html: where the page goes; None: nowhere.
        json: print one JSON document in place of the text.

    Raises:
        ArgumentError: something given cannot be used; it is found out before the work begins.
        MissingExtraError: `text` needs an extra that is not installed.
    """
    rungs = ladder.choose(rung)
    tokens = _tokens(input, text)
    with nullcontext() if html is None else reserved(html, "--html") as write:
        with progress(len(rungs) + 1) as announce:
            report = take(tokens, rungs, announce)
        if write is not None:
            write(page.as_html(report))
    if json:
        print_out(document.as_json(report))
    else:
        print_out(terminal.as_text(report, sys.stdout, html))
    return not report.disagreements


def _tokens(file: Path | None, text: str | None) -> inputs.Tokens:
    if file is not None and text is not None:
        raise ArgumentError(
            "--input, --text",
            expected="one of them",
            received="both",
            remedy="Attend to a matrix or to a text.",
        )
    if file is not None:
        return inputs.read(file)
    return inputs.sentence() if text is None else minilm.embed(text)
