"""The command `heedful check`: load a target, check it and print the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from heedful.conformance.own_process import RANKS_SECONDS, Limits, check_in_own_process
from heedful.conformance.reporting.catalogue import find_entry
from heedful.conformance.reporting.fix import Fix
from heedful.conformance.reporting.junit import as_junit
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.result import EXIT_OK
from heedful.conformance.reporting.text import as_text, catalogue_as_text
from heedful.errors import ArgumentError
from heedful.screen import print_out, progress, visible, wrapped
from heedful.writing import reserved

Format = Literal["text", "json", "junit"]


def explain(name: str) -> None:
    """Print what a finding means, how a probe shows it, and how to fix it.

    Raises:
        ArgumentError: No finding has that name.
    """
    print_out(wrapped(str(find_entry(name, "--explain")), sys.stdout))


def list_findings() -> None:
    """Print the name and meaning of every finding."""
    print_out(catalogue_as_text(sys.stdout))


def check_and_print(
    target: str,
    *,
    assignments: Sequence[str],
    expectations: Sequence[str],
    causal: bool | None,
    window: int | None,
    num_heads: int | None,
    fix: bool = False,
    write: bool = False,
    example: str | None,
    example_from: str | None,
    module: str | None,
    strict: bool,
    form: Format,
) -> int:
    """Check a target, print the report, and return the exit code.

    Args:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        assignments: Arguments of the constructor as "name=value". Each value is a Python literal, an expression, or
            else text.
        expectations: Known findings as "name=reason".
        causal: Whether the target should be causal, as in `check`.
        window: The window that the target should have, as in `check`.
        num_heads: The number of heads that the target should have, as in `check`.
        fix: Whether to look for edits of the source that mend the bugs.
        write: Whether to look for them and to write them to the file.
        example: The arguments of a call as a Python expression.
        example_from: A test that calls the target, as "path/to/test_file.py::test_name".
        module: The name of the module within the target that is to be checked, as in `check`.
        strict: Whether lines that no probe runs are a bug, as in `check`.
        form: The format of the report.

    Returns:
        0 if there are no bugs, or all of them were mended and written; otherwise 1.

    Raises:
        HeedfulError: An argument is malformed, or the target cannot be imported, built or called, or it ends its
            process, or it takes too long; or the file cannot be written or has changed meanwhile.
    """
    arguments = dict(pairs(assignments, "--with"))
    expected_failures = expected_by(expectations)
    if example_from and (example or module or assignments):
        raise ArgumentError(
            "--example-from",
            expected="a test alone, which makes the module and calls it",
            received="--example, --module or --with beside it",
            remedy="Give one of them.",
        )
    options = {
        "causal": causal,
        "window": window,
        "num_heads": num_heads,
        "expected_failures": expected_failures,
        "fix": fix or write,
        "module": module,
        "strict": strict,
    }
    with progress(1) as announce:
        announce(f"Checking {visible(target)}")
        report = check_in_own_process(
            target,
            arguments=arguments,
            options=options,
            example=example or "",
            example_from=example_from or "",
        )
    if write and report.fixes:
        write_fixes(report.fixes)
    print_out(_formatted(report, form))
    return report.exit_code if report.unfixed or not write else EXIT_OK


def check_on_ranks_and_print(
    target: str,
    ranks: int,
    *,
    reference: str,
    layout: str | None,
    assignments: Sequence[str],
    expectations: Sequence[str],
    causal: bool | None,
    example: str,
    unused: Sequence[str],
    form: Format,
) -> int:
    """Check a target over many ranks, print the report, and return the exit code.

    Args:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        ranks: The number of ranks.
        reference: The same attention for one rank, in the same form; "" if the target runs on one.
        layout: Which tokens each rank gets; None to try which fits.
        assignments: Arguments of the constructor as "name=value".
        expectations: Known findings as "name=reason".
        causal: Whether calls should be causal, if an argument decides that.
        example: The arguments of a call as a Python expression; "" if they are not given.
        unused: The options that the user gave and that have no meaning here.
        form: The format of the report.

    Returns:
        0 if there are no bugs, otherwise 1.

    Raises:
        HeedfulError: As in `check_and_print`.
    """
    if unused:
        raise ArgumentError(
            unused[0],
            expected="no such option beside --ranks, which compares ranks with one",
            received="both",
            remedy="Check the target on one rank without --ranks as well; that check takes it.",
        )
    report = check_in_own_process(
        target,
        arguments=dict(pairs(assignments, "--with")),
        options={
            "ranks": ranks,
            "reference": reference,
            "layout": layout,
            "causal": causal,
            "expected_failures": expected_by(expectations),
        },
        example=example,
        limits=Limits(seconds=RANKS_SECONDS),
    )
    print_out(_formatted(report, form))
    return report.exit_code


def write_fixes(fixes: Sequence[Fix]) -> None:
    """Write the source after the last fix to the file that they mend.

    Raises:
        ArgumentError: The file cannot be written, or it has changed since it was checked.
    """
    path = Path(fixes[0].file)
    with reserved(path, "--write") as write:
        if path.read_bytes() != fixes[0].before.encode():
            raise ArgumentError(
                "--write",
                expected="the file that was checked",
                received=f"{path}, which has changed since",
                remedy="Run the check again; nothing was written.",
            )
        write(fixes[-1].after)
    print(f"Wrote {len(fixes)} fix{'es' if len(fixes) > 1 else ''} to {path}.", file=sys.stderr)


def _formatted(report: Report, form: Format) -> str:
    match form:
        case "json":
            return report.to_json()
        case "junit":
            return as_junit(report)
        case "text":
            return as_text(report, sys.stdout)


def expected_by(expectations: Sequence[str]) -> dict[str, str]:
    """Return the reasons of expected findings by name, from "name=reason" texts.

    Raises:
        ArgumentError: A text has another form, or no finding has that name.
    """
    expected_failures = dict(pairs(expectations, "--expect"))
    for name in expected_failures:
        find_entry(name, "--expect")
    return expected_failures


def pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Return "name=value" texts as pairs.

    Raises:
        ArgumentError: A text has another form.
    """
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise ArgumentError(
                option,
                expected="NAME=VALUE" if option == "--with" else "NAME=REASON",
                received=repr(text),
                remedy="Put it in quotes if it contains spaces.",
            )
        pairs.append((name.strip(), value.strip()))
    return pairs
