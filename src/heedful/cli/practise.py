"""The command `heedful practise`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli import names
from heedful.cli.ending import FAILED


def practise(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="An exercise, named like the finding that describes its bug. Default: the one that was started "
            "last; if it is solved, the next one.",
            show_default=False,
            autocompletion=names.exercises,
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--in", metavar="DIR", help="The folder of the exercises' files.")
    ] = Path("practise"),
    check: Annotated[
        bool,
        typer.Option("--check", help="Say whether the bug is gone and nothing new came, no more."),
    ] = False,
    hint: Annotated[
        bool,
        typer.Option(
            "--hint",
            help="Print one hint more: what goes wrong, then the step, the function, and the line.",
        ),
    ] = False,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Write the exercise again, over the changes in its file."),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Print every exercise and your progress, and exit.")
    ] = False,
) -> None:
    """Practise finding bugs: write an attention module with one bug to a file, for you to find in your editor.

    Without NAME, it also lists the exercises and your progress, which is kept in DIR/progress.json. A file that you
    have changed is left alone. Exits with 1 if --check says that the bug is still there or that something new came,
    and with 2 if the module cannot be imported, built or called, or an argument cannot be used.
    """
    from heedful.conformance.practising import command

    if check:
        if not command.check(name, folder):
            raise typer.Exit(FAILED)
    elif hint:
        command.hint(name, folder)
    else:
        if name is None or listed:
            command.list_exercises(folder)
        if not listed:
            command.start(name, folder, restart=restart)
