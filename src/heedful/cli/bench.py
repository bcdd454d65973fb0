"""The command `heedful bench`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.ending import FAILED
from heedful.cli.options import Json


def bench(
    case: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run this case, or all cases whose names start with NAME. Repeatable.",
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compare with this peer, besides each case's baseline. Repeatable.",
        ),
    ] = None,
    json: Json = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Draw time and memory against length: .png or .svg."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write the report as Markdown, too.")
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Judge the results by the targets in a TOML file."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Use small workloads and few turns, to check the results only."
        ),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Print the name of every case, and exit.")
    ] = False,
) -> None:
    """Time attention beside PyTorch's and that of other libraries, and check every result.

    Exits with 1 if a result is wrong, and with 2 if an argument cannot be used.
    """
    from heedful.bench.command import bench, list_cases

    if listed:
        list_cases()
        return
    right = bench(
        case_names=case or [],
        peer_names=peer or [],
        json=json,
        picture=plot,
        markdown=page,
        targets=targets,
        quick=quick,
    )
    if not right:
        raise typer.Exit(FAILED)
