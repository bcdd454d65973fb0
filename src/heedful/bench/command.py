"""`heedful bench` as the command line gives it: from options to a report, printed, written and drawn."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from heedful.bench import cases, document, page, peers, plot, report, terminal
from heedful.screen import print_out, progress
from heedful.writing import reserved


def bench(
    *,
    case_names: list[str],
    peer_names: list[str],
    json: bool,
    picture: Path | None,
    markdown: Path | None,
    quick: bool,
) -> bool:
    """Measure, then print, write and draw; say whether all results are right.

    Args:
        case_names: cases, or the beginnings of their names; empty: all.
        peer_names: whom to compare with beside each case's baseline; empty: all that are installed.
        json: print one JSON document in place of the text.
        picture: where time and memory against length are drawn (.png or .svg); None: nowhere.
        markdown: where the page goes; None: nowhere.
        quick: small shapes and few turns.

    Raises:
        ArgumentError: something given cannot be used; it is found out before the work begins.
        MissingExtraError: the picture needs an extra that is not installed.
    """
    chosen, compared = cases.choose(case_names), peers.choose(peer_names)
    if picture is not None:
        plot.check(picture)
    with ExitStack() as files:
        write_picture = _reserve(files, picture, "--plot")
        write_page = _reserve(files, markdown, "--page")
        plotted = 0 if picture is None else len(plot.QUICK_LENGTHS if quick else plot.LENGTHS)
        with progress(len(chosen) + 1 + plotted) as announce:
            found = report.take(chosen, compared, quick=quick, announce=announce)
            if picture is not None:
                write_picture(plot.picture(picture, quick=quick, announce=announce))
        write_page(page.as_markdown(found))
    print_out(document.as_json(found) if json else terminal.as_text(found, sys.stdout))
    return not found.wrong


def _reserve(files: ExitStack, path: Path | None, option: str) -> Callable[[str | bytes], None]:
    """What writes the file, at the end; what writes nothing, where none was named."""
    return (lambda _: None) if path is None else files.enter_context(reserved(path, option))
