"""The command `heedful show`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.options import Assignments, Causal, Example


def show(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="path/to/file.py:Name or package.module:Name, as in heedful check.",
            show_default=False,
        ),
    ] = None,
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if", help="Show a small attention instead, whose parts you change in the page."
        ),
    ] = False,
    beside: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="Show another target side by side, built alike."),
    ] = None,
    assignments: Assignments = None,
    example: Example = None,
    causal: Causal = None,
    module: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Show this module within the target, as in heedful check."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS", help="A word for each token, which also says how many there are."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Show the heads of a real model instead: a folder of transformers or of heedful train, or an "
            "installed package that carries one.",
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The text that the model reads.")
    ] = None,
    text_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the text, in UTF-8.")
    ] = None,
    target_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What the decoder of an encoder-decoder writes. Default: what it finds most likely.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Read the first N tokens of the text."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="The model's layers to show, such as 0,3-5."),
    ] = None,
    heads: Annotated[
        str | None, typer.Option(metavar="LIST", help="The query heads to show, likewise.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="The page (.html), or a picture of its maps (.svg, .png). Default: page.html.",
            show_default=False,
        ),
    ] = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Serve the model's page on this machine instead, down to single tokens of a long text.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=65535, help="The port to serve at. Default: a free one."
        ),
    ] = None,
) -> None:
    """Show what an attention computes: its code beside every step, or the heads of a real model on a text.

    A target is built and called on random tokens, as heedful check does. A model runs once on the text, without a
    network; --serve keeps its queries and keys in a temporary file until Ctrl-C, which exits with 0.

    Exits with 2 if the target or model cannot be built or called, or an argument cannot be used.
    """
    from heedful.viewer.command import check_unused, show

    if model is not None:
        unused = {
            "TARGET": target,
            "--what-if": what_if or None,
            "--beside": beside,
            "--with": assignments,
        }
        unused |= {"--example": example, "--causal": causal, "--module": module}
        unused |= {"--labels": labels}
        check_unused(unused | ({"--out": out} if serve else {"--port": port}), model)
        from heedful.viewer.models.command import show_model

        show_model(
            model,
            text=text,
            text_file=text_file,
            target_text=target_text,
            tokens=tokens,
            layers=layers,
            heads=heads,
            out=out or Path("page.html"),
            port=(port or 0) if serve else None,
        )
        return
    unused = {"--text": text, "--text-file": text_file, "--target-text": target_text}
    unused |= {"--tokens": tokens, "--layers": layers}
    check_unused(unused | {"--heads": heads, "--serve": serve or None, "--port": port}, model)
    show(
        target,
        what_if=what_if,
        beside=beside,
        assignments=assignments or [],
        example=example,
        causal=causal,
        module=module,
        labels=labels,
        out=out or Path("page.html"),
    )
