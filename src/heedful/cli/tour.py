"""The command `heedful tour`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli import names
from heedful.cli.ending import FAILED
from heedful.cli.options import Json
from heedful.tour.titles import TITLES

_LISTED = ", ".join(f"{number} {name}" for number, name in enumerate(TITLES, 1))


def tour(
    rung: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Show only this rung, by name or number: {_LISTED}.",
            autocompletion=names.rungs,
        ),
    ] = None,
    input: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Attend to the matrix (tokens, features) in a .npy, .csv or .pt file.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS", help="A word for each token of --input, separated by spaces."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Attend to MiniLM's token vectors of a text, with the model's own heads.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Write the page to this file. Default: tour.html; with --json, no page is written.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show attention step by step, from dot products to multi-head attention, and write the same as a page.

    Every route to a result is computed and compared. Exits with 1 if two routes disagree, and with 2 if an argument
    cannot be used.
    """
    from heedful.tour.command import tour

    if html is None and not json:
        html = Path("tour.html")
    if not tour(rung=rung, input=input, labels=labels, text=text, html=html, json=json):
        raise typer.Exit(FAILED)
