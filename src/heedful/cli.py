"""The command line: options, exit codes, and the handling of errors. The commands' work is done in other modules."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer
from typer.core import TyperGroup

from heedful.errors import HeedfulError
from heedful.screen import visible

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130  # exit codes


DEFECT = (
    "This is a defect of heedful: please report it with the output of `heedful info` and of the same command with "
    "HEEDFUL_DEBUG=1, which shows where it happened."
)


class _Commands(TyperGroup):
    """The commands, which end with one line and an exit code whatever happens.

    The exit code is 2 after an error that heedful raises on purpose, after a defect of heedful, and if the output
    cannot be written; it is 130 after Ctrl-C. HEEDFUL_DEBUG=1 shows the traceback of a defect.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except HeedfulError as error:
            raise _ended(f"{ctx.invoked_subcommand}: {error}", UNUSABLE) from error
        except KeyboardInterrupt as error:
            raise _ended(f"{ctx.invoked_subcommand}: interrupted", INTERRUPTED) from error

    def main(self, *arguments: Any, **options: Any) -> Any:
        sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
        try:
            try:
                return super().main(*arguments, **options)
            finally:
                sys.stdout.flush()  # Python itself would fail with a traceback when it ends
        except BrokenPipeError:
            _abandon_output()
            sys.exit(UNUSABLE)
        except Exception as error:
            if os.environ.get("HEEDFUL_DEBUG") == "1":
                raise
            if isinstance(error, OSError) and error.filename is None:
                _abandon_output()
                ended = _ended(f"cannot write the output: {error.strerror or error}", UNUSABLE)
            elif isinstance(error, MemoryError):
                ended = _ended("this machine's memory is not enough", UNUSABLE)
            else:
                ended = _ended(f"{type(error).__name__}: {error}. {DEFECT}", UNUSABLE)
            sys.exit(ended.exit_code)


def _ended(line: str, code: int) -> typer.Exit:
    """Print why a command ends, in one line, and return the exit code to raise."""
    print(f"heedful {visible(line)}", file=sys.stderr)
    return typer.Exit(code)


def _nowhere() -> TextIO:
    """Return a stream in the place of a closed one."""
    return open(os.devnull, "w", encoding="utf-8")


def _abandon_output() -> None:
    """Let Python flush what it could not write, without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app: typer.Typer = typer.Typer(
    cls=_Commands,
    help="Attention for PyTorch that you can read, check, see and run fast.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


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


@app.command()
def tour(
    rung: Annotated[str | None, typer.Option(metavar="NAME", help="Show only this rung.")] = None,
    input: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Attend to the matrix (tokens, features) in a .npy, .csv or .pt file.",
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
    if not tour(rung=rung, input=input, text=text, html=html, json=json):
        raise typer.Exit(FAILED)


@app.command()
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
    assignments: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=VALUE", help="As in heedful check. Repeatable."),
    ] = None,
    example: Annotated[
        str | None, typer.Option(metavar="ARGUMENTS", help="As in heedful check.")
    ] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--bidirectional", help="As in heedful check.")
    ] = None,
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
    tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Read the first N tokens of the text."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="The model's attentions to show, such as 0,3-5."),
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
        from heedful.viewer.model_command import show_model

        show_model(
            model,
            text=text,
            text_file=text_file,
            tokens=tokens,
            layers=layers,
            heads=heads,
            out=out or Path("page.html"),
            port=(port or 0) if serve else None,
        )
        return
    unused = {"--text": text, "--text-file": text_file, "--tokens": tokens, "--layers": layers}
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


@app.command()
def info(json: Json = False) -> None:
    """Describe this installation: versions, threads, instruction set, and why our kernel is missing if it is."""
    from dataclasses import asdict
    from json import dumps

    from heedful.info import info

    description = info()
    print(dumps(asdict(description), indent=2) if json else description)


@app.command()
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
) -> None:
    """Time attention beside PyTorch's and that of other libraries, and check every result.

    Exits with 1 if a result is wrong, and with 2 if an argument cannot be used.
    """
    from heedful.bench.command import bench

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


@app.command()
def check(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="path/to/file.py:Name or package.module:Name, where Name is a class, a function or an instance. "
            "The name is optional if the file defines exactly one nn.Module.",
            show_default=False,
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=VALUE",
            help="An argument of the constructor, if its value cannot be guessed from its name. Repeatable.",
        ),
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--bidirectional",
            help="Whether a query may see later keys. Default: as the target declares.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The number of keys that each query sees, its own included."
        ),
    ] = None,
    heads: Annotated[int | None, typer.Option(metavar="N", help="The number of heads.")] = None,
    example: Annotated[
        str | None,
        typer.Option(
            metavar="ARGUMENTS",
            help="The arguments of a call in Python, such as 'torch.randn(2, 9, 32), mask=None'. They may use the "
            "names of the target's file.",
        ),
    ] = None,
    example_from: Annotated[
        str | None,
        typer.Option(
            metavar="FILE::TEST",
            help="A test without fixtures that calls the target; its first call is the example.",
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Check this module within the target, such as blocks.0.attn, with the inputs that it gets when the "
            "target runs.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Lines of the target that no probe ran are a bug.")
    ] = False,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REASON",
            help="A known finding, which does not count as a bug. Repeatable.",
        ),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help="Print a diff for each bug that has a mechanical remedy, proved by another check of a copy.",
        ),
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Look for the same diffs and apply them to the file.")
    ] = False,
    form: Annotated[
        Literal["text", "json", "junit"], typer.Option("--format", help="The report's format.")
    ] = "text",
    explain: Annotated[
        str | None, typer.Option(metavar="NAME", help="Print what a finding means, and exit.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Print every finding's name and meaning, and exit.")
    ] = False,
) -> None:
    """Check whether an attention module is right; if not, report which bug it has, and on which line.

    Exits with 1 if there are bugs (with --write, if some are left), and with 2 if the target cannot be imported,
    built or called.
    """
    from heedful.conformance import command

    if listed:
        command.list_findings()
    elif explain is not None:
        command.explain(explain)
    else:
        code = command.check_and_print(
            target or "",
            assignments=assignments or [],
            expectations=expect or [],
            causal=causal,
            window=window,
            num_heads=heads,
            fix=fix,
            write=write,
            example=example,
            example_from=example_from,
            module=module,
            strict=strict,
            form=form,
        )
        raise typer.Exit(code)


@app.command()
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
    assignments: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=VALUE", help="As in heedful check. Repeatable."),
    ] = None,
    causal: Annotated[
        bool | None, typer.Option("--causal/--bidirectional", help="As in heedful check.")
    ] = None,
    window: Annotated[int | None, typer.Option(metavar="N", help="As in heedful check.")] = None,
    heads: Annotated[int | None, typer.Option(metavar="N", help="As in heedful check.")] = None,
    example: Annotated[
        str | None, typer.Option(metavar="ARGUMENTS", help="As in heedful check.")
    ] = None,
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


@app.command()
def practise(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="An exercise, named like the finding that describes its bug. Default: the one that was started "
            "last; if it is solved, the next one.",
            show_default=False,
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


@app.command()
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
        done = command.compare(books or [], against, config=config, options=options)
    if not done:
        raise typer.Exit(INTERRUPTED if against is None else FAILED)


@app.command()
def generate(
    folder: Annotated[
        Path,
        typer.Option(
            "--from",
            metavar="DIR",
            help="A folder that heedful train wrote, or a GPT-2 or Llama of transformers with its tokenizer.json.",
        ),
    ] = Path("gpt"),
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="The beginning of the text; - reads it from stdin. Repeatable, for a batch of texts.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", help="The maximum number of new tokens.")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            metavar="T",
            help="0 always takes the most likely token; 1 samples from the model's probabilities.",
        ),
    ] = 0.8,
    top_k: Annotated[
        int | None,
        typer.Option(metavar="K", help="Sample only from the K most likely tokens."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Sample only from the most likely tokens whose probabilities add up to P.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="The seed; the same seed gives the same text.")
    ] = None,
) -> None:
    """Continue a text with a GPT that heedful train made, or with a GPT-2 or Llama of transformers.

    When a text grows beyond the model's context, the oldest half of the context is dropped. Exits with 2 if an
    argument cannot be used.
    """
    from heedful.gpt.command import print_continuations
    from heedful.gpt.generation import Sampling

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    print_continuations(folder, prompt or [""], tokens=tokens, sampling=sampling)
