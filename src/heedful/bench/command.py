"""The command `heedful bench`: from options to a report that is printed, written and drawn."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from heedful.bench.cases import CASES, choose_cases
from heedful.bench.peers import choose_peers
from heedful.bench.report import plot
from heedful.bench.report.json import as_json
from heedful.bench.report.markdown import as_markdown
from heedful.bench.report.text import as_text
from heedful.bench.run import run_cases
from heedful.bench.targets import BenchTargets
from heedful.screen import aligned, print_out, progress
from heedful.writing import reserved


def list_cases() -> None:
    """Print the name of every case, with the heading under which reports list it."""
    print_out(aligned(((case.name, case.group) for case in CASES), sys.stdout))


def bench(
    *,
    case_names: list[str],
    peer_names: list[str],
    json: bool,
    picture: Path | None,
    markdown: Path | None,
    targets: Path | None = None,
    quick: bool,
) -> bool:
    """Run the benchmark, then print, write and draw the report.

    Args:
        case_names: Names of cases, or their beginnings. Empty: all cases.
        peer_names: Names of peers to compare with, in addition to each case's baseline. Empty: all installed peers.
        json: Print one JSON document instead of text.
        picture: The .png or .svg file in which to plot time and memory against length. None: no plot.
        markdown: The file to which the report is written as Markdown. None: no file.
        targets: A TOML file of targets by which the results are judged. None: they are not judged.
        quick: Use small workloads and few turns.

    Returns:
        Whether all results are right.

    Raises:
        ArgumentError: An option cannot be used. This is found before the work begins.
        MissingExtraError: The plot needs an extra that is not installed.
    """
    cases, peers = choose_cases(case_names), choose_peers(peer_names)
    targets_read = None if targets is None else BenchTargets.read(targets)
    if picture is not None:
        plot.check_plot(picture)
    with ExitStack() as files:
        write_picture = _reserve(files, picture, "--plot")
        write_page = _reserve(files, markdown, "--page")
        plotted = 0 if picture is None else len(plot.QUICK_LENGTHS if quick else plot.LENGTHS)
        with progress(len(cases) + 1 + plotted) as announce:
            report = run_cases(cases, peers, targets_read, quick=quick, announce=announce)
            if picture is not None:
                write_picture(plot.draw_plot(picture, quick=quick, announce=announce))
        write_page(as_markdown(report))
    print_out(as_json(report) if json else as_text(report, sys.stdout))
    return report.right


def _reserve(files: ExitStack, path: Path | None, option: str) -> Callable[[str | bytes], None]:
    """Return a function that writes the file, or one that does nothing if there is no path."""
    return (lambda _: None) if path is None else files.enter_context(reserved(path, option))
