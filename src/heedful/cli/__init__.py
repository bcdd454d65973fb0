"""The command line. Each file declares one command's options; the commands' work is done in other packages.

Only the body of a command imports what it needs, so that `--help`, `--version` and completion answer at once.
"""

from typing import Annotated

import typer

from heedful.cli import bench, check, generate, grade, info, plan, practise, show, tour, train
from heedful.cli.ending import Commands
from heedful.cli.help import CommandWithExamples, columns, first_steps
from heedful.screen import print_out

__all__ = ["app"]

app: typer.Typer = typer.Typer(
    cls=Commands,
    help="Attention for PyTorch that you can read, check, see and run fast.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": columns()},
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
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Attention for PyTorch that you can read, check, see and run fast."""
    if context.invoked_subcommand is None:
        print_out(first_steps())


for _command in (
    tour.tour,
    show.show,
    info.info,
    bench.bench,
    plan.plan,
    check.check,
    grade.grade,
    practise.practise,
    train.train,
    generate.generate,
):
    app.command(cls=CommandWithExamples)(_command)
