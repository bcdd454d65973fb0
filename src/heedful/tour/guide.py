"""The tour as the command line gives it: from options to a report, printed and written."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from heedful.errors import ArgumentError
from heedful.tour import document, inputs, ladder, minilm, page, terminal
from heedful.tour.report import take
from heedful.tour.writing import reserved

ERASE_LINE = "\r\x1b[2K"


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
    with nullcontext() if html is None else reserved(html) as write:
        with _progress(len(rungs) + 1) as announce:
            report = take(tokens, rungs, announce)
        if write is not None:
            write(page.as_html(report))
    if json:
        _print(document.as_json(report))
    else:
        _print(terminal.as_text(report, sys.stdout, html))
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


@contextmanager
def _progress(stages: int) -> Iterator[Callable[[str], None]]:
    """Say on stderr what is being done, where that is a terminal; nothing spins, for it would slow the timing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    begun = 0

    def announce(stage: str) -> None:
        nonlocal begun
        begun += 1
        print(f"{ERASE_LINE}{begun}/{stages} {stage} …", end="", file=sys.stderr, flush=True)

    try:
        yield announce
    finally:
        print(ERASE_LINE, end="", file=sys.stderr, flush=True)


def _print(text: str) -> None:
    """Print to stdout, quietly where the reader has gone (`heedful tour | head`)."""
    encoding = sys.stdout.encoding
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Python flushes stdout once more as it ends, and that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
