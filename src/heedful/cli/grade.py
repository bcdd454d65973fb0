"""The command `heedful grade`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import Assignments, Causal, Example, Json


def grade(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The folder of submissions. Each .py file and each folder in it is one.",
            show_default=False,
        ),
    ],
    entry: Annotated[
        str,
        typer.Option(metavar="NAME", help="The class or function that every submission defines."),
    ],
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table as CSV, too.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the table and all reports as a page, too."),
    ] = None,
    json: Json = False,
    assignments: Assignments = None,
    causal: Causal = None,
    window: Annotated[int | None, typer.Option(metavar="N", help="As in heedful check.")] = None,
    heads: Annotated[int | None, typer.Option(metavar="N", help="As in heedful check.")] = None,
    example: Example = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=REASON", help="As in heedful check. Repeatable."),
    ] = None,
    time: Annotated[
        float, typer.Option(metavar="SECONDS", min=1.0, help="The time limit of each submission.")
    ] = 120.0,
    memory: Annotated[
        float | None,
        typer.Option(
            metavar="GB",
            min=0.5,
            help="The memory that each submission may use. Default: three quarters of the machine's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check every submission of a class, one row each: its verdict, and its bugs with their lines.

    The verdict is "ok", "bug", "could not be called", "crashed" (its process ended) or "timed out". Each submission is
    checked in a process and a folder of its own, and what it prints is dropped. The files of --csv and --html are
    written after each submission, so that Ctrl-C leaves the rows so far.

    Exits with 0 if all submissions are ok, with 2 if none could be checked or an argument cannot be used, with 130
    after Ctrl-C, and otherwise with 1.
    """
    from heedful.conformance.grading import command
    from heedful.conformance.own_process import Limits

    code = command.grade(
        folder,
        entry,
        assignments=assignments or [],
        expectations=expect or [],
        options={"causal": causal, "window": window, "num_heads": heads},
        example=example or "",
        limits=Limits(time, None if memory is None else int(memory * 1e9)),
        csv=csv,
        html=html,
        json=json,
    )
    raise typer.Exit(code)
