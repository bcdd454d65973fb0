"""The command `heedful train`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from heedful.cli.ending import FAILED, INTERRUPTED


def train(
    books: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[BOOK]...",
            help="Plain text files in UTF-8, or folders of .txt files. Default: the sonnets that heedful includes.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The run's folder, which must not exist yet.")
    ] = Path("gpt"),
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings in TOML: keys of TrainingConfig, and keys of GPTConfig in a table [model].",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after this number of steps.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Stop after reading this number of tokens.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="Plan as many steps as fit into this number of minutes."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from where it was saved.")
    ] = False,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES",
            help="Share the rows, tokens and heads of a batch among processes that torchrun starts: dp=2,cp=2,tp=1.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="KERNEL",
            help="Compare two attention kernels instead: train 200 steps (or --steps) with ours and with KERNEL "
            "(for example torch_sdpa), print losses and speed, and write no files.",
        ),
    ] = None,
) -> None:
    """Train a GPT on books.

    By default, it trains a small model in one or two minutes, or on many books, a model of 10 million parameters in
    15 minutes. Ctrl-C saves the run, and --resume continues it to the same weights as without a break.

    Exits with 1 if the losses of --against differ, with 2 if an argument cannot be used, and with 130 after Ctrl-C.
    """
    from heedful.gpt.train import command

    options = {"steps": steps, "tokens": tokens, "minutes": minutes}
    if against is None:
        done = command.train(
            books or [], out, config=config, options=options, resume=resume, mesh=mesh
        )
    else:
        done = command.compare(books or [], against, config=config, options=options, mesh=mesh)
    if not done:
        raise typer.Exit(INTERRUPTED if against is None else FAILED)
