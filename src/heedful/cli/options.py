"""Options that several commands have."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

# Those of heedful check, as other commands have them.
Assignments = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="NAME=VALUE", help="As in heedful check. Repeatable."),
]
Causal = Annotated[
    bool | None, typer.Option("--causal/--bidirectional", help="As in heedful check.")
]
Example = Annotated[str | None, typer.Option(metavar="ARGUMENTS", help="As in heedful check.")]
