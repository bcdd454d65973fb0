"""The command line: options in, exit codes out. The work is done by what it calls."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

DISAGREE, UNUSABLE, INTERRUPTED = 1, 2, 130  # exit codes

app = typer.Typer(
    help="Attention for PyTorch that you can read, check, see and run fast.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
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


@app.command()
def tour(
    rung: Annotated[str | None, typer.Option(metavar="NAME", help="Climb this rung only.")] = None,
    input: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Attend to the matrix (tokens, features) in a .npy, .csv or .pt file.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Attend to MiniLM's token vectors of a text."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Where the page goes: tour.html, or nowhere with --json, if not given.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of text.")
    ] = False,
) -> None:
    """Climb from dot products to multi-head attention: every step shown, every route checked, and a page written.

    Exits with 1 if two routes disagree, and with 2 if something given cannot be used.
    """
    from heedful.errors import HeedfulError
    from heedful.tour.command import tour

    if html is None and not json:
        html = Path("tour.html")
    try:
        agrees = tour(rung=rung, input=input, text=text, html=html, json=json)
    except HeedfulError as error:
        print(f"heedful tour: {error}", file=sys.stderr)
        raise typer.Exit(UNUSABLE) from error
    if not agrees:
        raise typer.Exit(DISAGREE)


@app.command()
def info(
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of text.")
    ] = False,
) -> None:
    """Say what this installation computes with: versions, threads, instruction set, or why our kernel is missing."""
    from dataclasses import asdict
    from json import dumps

    from heedful.info import info

    found = info()
    print(dumps(asdict(found), indent=2) if json else found)


@app.command()
def bench(
    case: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="This case, or all whose names begin so; repeatable."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Compare with this one beside each case's baseline; repeatable."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of text.")
    ] = False,
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
) -> None:
    """Time attention beside PyTorch's and that of other libraries, and check every result.

    Exits with 1 if a result is wrong, and with 2 if something given cannot be used.
    """
    from heedful.bench.command import bench
    from heedful.errors import HeedfulError

    try:
        right = bench(
            case_names=case or [],
            peer_names=peer or [],
            json=json,
            picture=plot,
            markdown=page,
            targets=targets,
            quick=quick,
        )
    except HeedfulError as error:
        print(f"heedful bench: {error}", file=sys.stderr)
        raise typer.Exit(UNUSABLE) from error
    if not right:
        raise typer.Exit(DISAGREE)


@app.command()
def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="path/to/file.py:Name or package.module:Name: a class, a function or an instance; the name may be "
            "left out where a file defines one nn.Module.",
            show_default=False,
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=VALUE",
            help="An argument of the constructor, where its name does not tell; repeatable.",
        ),
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--bidirectional",
            help="Whether a query may see later keys; as the target declares if not given.",
        ),
    ] = None,
    window: Annotated[
        int | None, typer.Option(metavar="N", help="How many keys each query sees, its own too.")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(metavar="N", help="How many heads there are.")
    ] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REASON", help="A finding that is known: it counts as no bug; repeatable."
        ),
    ] = None,
    form: Annotated[
        Literal["text", "json", "junit"], typer.Option("--format", help="How to print the report.")
    ] = "text",
    explain: Annotated[
        str | None, typer.Option(metavar="NAME", help="Say what a finding means, and end.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Print every finding's name and meaning, and end.")
    ] = False,
) -> None:
    """Say whether an attention module is right, and if not, which bug it has, on which line.

    Exits with 1 if there are bugs, and with 2 if the target cannot be imported, built or called.
    """
    from heedful.conformance import command as check_command
    from heedful.errors import HeedfulError

    try:
        if listed:
            check_command.list_findings()
        elif explain is not None:
            check_command.explain(explain)
        else:
            code = check_command.check_and_print(
                target or "",
                assignments=assignments or [],
                expectations=expect or [],
                causal=causal,
                window=window,
                num_heads=heads,
                form=form,
            )
            raise typer.Exit(code)
    except HeedfulError as error:
        print(f"heedful check: {error}", file=sys.stderr)
        raise typer.Exit(UNUSABLE) from error


@app.command()
def train(
    books: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[BOOK]...",
            help="Plain text in UTF-8, or folders of .txt files; none: the sonnets that come with heedful.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The run's folder; it must not exist yet.")
    ] = Path("gpt"),
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Changes in TOML: keys of TrainingConfig, and of GPTConfig in a table [model].",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="End after so many steps.")] = None,
    tokens: Annotated[
        int | None, typer.Option(metavar="N", help="End after so many tokens read.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="Plan as many steps as fit into so much time.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run in --out was saved last.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="KERNEL",
            help="Write nothing: train 200 steps (or --steps) twice in turn, the second on this attention "
            "kernel (torch_sdpa), and compare losses and speed.",
        ),
    ] = None,
) -> None:
    """Train a GPT on books: by default a small one in a minute or two, or on a shelf of books one of 10 million
    parameters in 15 minutes.

    Ctrl-C saves, and --resume goes on, to the same weights as without a break. Exits with 1 if --against finds
    other losses, with 2 if something given cannot be used, and with 130 after Ctrl-C.
    """
    from heedful.errors import HeedfulError
    from heedful.gpt.train import command

    options = {"steps": steps, "tokens": tokens, "minutes": minutes}
    try:
        if against is None:
            done = command.train(books or [], out, config=config, options=options, resume=resume)
        else:
            done = command.compare(books or [], against, config=config, options=options)
    except HeedfulError as error:
        print(f"heedful train: {error}", file=sys.stderr)
        raise typer.Exit(UNUSABLE) from error
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(INTERRUPTED) from interrupt
    if not done:
        raise typer.Exit(INTERRUPTED if against is None else DISAGREE)


@app.command()
def generate(
    folder: Annotated[
        Path,
        typer.Option(
            "--from",
            metavar="DIR",
            help="What heedful train wrote, or a GPT-2 or Llama of transformers with its tokenizer.json.",
        ),
    ] = Path("gpt"),
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="What the text begins with; - reads stdin; repeatable, for a batch.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", help="The most new tokens; a text may end before.")
    ] = 200,
    temperature: Annotated[
        float, typer.Option(metavar="T", help="0: always the likeliest; 1: as the model says.")
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Draw from the K likeliest tokens alone.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="P", help="Draw from the likeliest alone that together have P."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The same seed says the same again.")
    ] = None,
) -> None:
    """Go on with a text: by a GPT that heedful train made, or by a GPT-2 or Llama of transformers.

    Beyond the model's context the oldest half of it is forgotten each time. Exits with 2 if something given cannot
    be used.
    """
    from heedful.errors import HeedfulError
    from heedful.gpt.command import print_continuations
    from heedful.gpt.generation import Sampling

    try:
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        print_continuations(folder, prompt or [""], tokens=tokens, sampling=sampling)
    except HeedfulError as error:
        print(f"heedful generate: {error}", file=sys.stderr)
        raise typer.Exit(UNUSABLE) from error
