"""The command line. Each file declares one command's options; the commands' work is done in other packages.

Only the body of a command imports what it needs, so that `--help`, `--version` and completion answer at once.
"""

from typing import Annotated

import typer

from heedful.cli import bench, check, generate, grade, info, practise, show, tour, train
from heedful.cli.ending import Commands

__all__ = ["app"]

app: typer.Typer = typer.Typer(
    cls=Commands,
    help="Attention for PyTorch that you can read, check, see and run fast.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        from heedful import __version__

        print(f"heedful {__version__}")
        raise typer.Exit


@app.callback()
def heedful(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Attention for PyTorch that you can read, check, see and run fast."""


for command in (
    tour.tour,
    show.show,
    info.info,
    bench.bench,
    check.check,
    grade.grade,
    practise.practise,
    train.train,
    generate.generate,
):
    app.command()(command)
