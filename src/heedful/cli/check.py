"""The command `heedful check`: its options."""

from typing import Annotated, Literal

import typer

from heedful.cli import names
from heedful.errors import ArgumentError


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
            help="An argument of the constructor, if its value cannot be guessed from its name: a literal, a text, "
            "or an expression with the names of the target's file, such as config=Config(width=8). Repeatable.",
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
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Compare N processes of a torch.distributed group with one, for context or tensor parallelism.",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="With --ranks: the same attention for one rank, if the target does not run on one.",
        ),
    ] = None,
    shard: Annotated[
        Literal["contiguous", "zigzag", "striped", "replicated", "heads"] | None,
        typer.Option(
            metavar="HOW",
            help="With --ranks: which tokens each rank gets: contiguous, zigzag, striped, replicated (all), or heads. "
            "Default: what fits, by trying.",
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
        str | None,
        typer.Option(
            metavar="NAME",
            help="Print what a finding means, and exit.",
            autocompletion=names.findings,
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Print every finding's name and meaning, and exit.")
    ] = False,
) -> None:
    """Check whether an attention module is right; if not, report which bug it has, and on which line.

    With --ranks, an attention over many processes is compared with the same attention on one: outputs, and the
    gradients of arguments and parameters.

    Exits with 1 if there are bugs (with --write, if some are left), and with 2 if the target cannot be imported,
    built or called.
    """
    from heedful.conformance import command

    if listed:
        command.list_findings()
    elif explain is not None:
        command.explain(explain)
    elif target is None:
        raise ArgumentError(
            "TARGET",
            expected="a target, --list or --explain",
            received="none of them",
            remedy="Write heedful check my.py:Attention.",
        )
    elif ranks is not None:
        unused = {"--window": window, "--heads": heads, "--example-from": example_from}
        unused |= {"--module": module, "--strict": strict, "--fix": fix, "--write": write}
        code = command.check_on_ranks_and_print(
            target,
            ranks,
            reference=reference or "",
            layout=shard,
            assignments=assignments or [],
            expectations=expect or [],
            causal=causal,
            example=example or "",
            unused=[option for option, value in unused.items() if value not in (None, False)],
            form=form,
        )
        raise typer.Exit(code)
    else:
        code = command.check_and_print(
            target,
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
