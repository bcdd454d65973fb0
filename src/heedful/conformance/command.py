"""`heedful check`: load a target, check it, print the report."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Sequence
from typing import Any, Literal

from heedful.conformance.calling.loading import loaded
from heedful.conformance.check import check
from heedful.conformance.reporting.catalogue import find_entry
from heedful.conformance.reporting.junit import as_junit
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.text import as_text, catalogue_as_text
from heedful.errors import ArgumentError
from heedful.screen import print_out

Format = Literal["text", "json", "junit"]


def explain(name: str) -> None:
    """Print what a finding means, what shows it, and its remedy.

    Raises:
        ArgumentError: there is none of that name.
    """
    print_out(str(find_entry(name, "--explain")))


def list_findings() -> None:
    """Print every finding's name and meaning."""
    print_out(catalogue_as_text(sys.stdout))


def check_and_print(
    target: str,
    *,
    assignments: Sequence[str],
    expectations: Sequence[str],
    causal: bool | None,
    window: int | None,
    num_heads: int | None,
    form: Format,
) -> int:
    """Check what a target names, print the report, and say with which code to exit.

    Args:
        target: "path/to/file.py:Name" or "package.module:Name".
        assignments: "name=value": the constructor's arguments, as Python literals, or else as text.
        expectations: "name=reason": findings that are known.
        causal, window, num_heads: what the target should be, as `check` takes it.
        form: how to print.

    Raises:
        ArgumentError: something given cannot be used, or the target cannot be imported, built or called.
    """
    arguments = {name: _literal(text) for name, text in _pairs(assignments, "--with")}
    expected = dict(_pairs(expectations, "--expect"))
    for name in expected:
        find_entry(name, "--expect")
    # What the target prints must not end up within the report.
    with contextlib.redirect_stdout(sys.stderr), loaded(target) as found:
        report = check(
            found,
            causal=causal,
            window=window,
            num_heads=num_heads,
            expected_failures=expected,
            arguments=arguments,
        )
    print_out(_printed(report, form))
    return report.exit_code


def _printed(report: Report, form: Format) -> str:
    match form:
        case "json":
            return report.to_json()
        case "junit":
            return as_junit(report)
        case "text":
            return as_text(report, sys.stdout)


def _pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts]
    for text, (name, separator, value) in zip(texts, pairs, strict=True):
        if not (name and separator and value):
            raise ArgumentError(
                option,
                expected="NAME=VALUE" if option == "--with" else "NAME=REASON",
                received=repr(text),
                remedy="Quote it where it holds spaces.",
            )
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _literal(text: str) -> Any:
    """A number, a tuple, True, None …; anything else is the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text
