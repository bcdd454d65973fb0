"""The command `heedful grade`: check every submission in a folder, and print and write the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from heedful.conformance.command import expected_by, pairs
from heedful.conformance.grading.grade import Grade, graded
from heedful.conformance.grading.html import as_page
from heedful.conformance.grading.submissions import find_submissions
from heedful.conformance.grading.table import as_csv, as_json, as_text
from heedful.conformance.own_process import Limits
from heedful.errors import ArgumentError
from heedful.screen import print_out, progress
from heedful.writing import reserved

ALL_OK, SOME_BAD, NONE_CHECKED = 0, 1, 2  # exit codes


def grade(
    folder: Path,
    entry: str,
    *,
    assignments: Sequence[str],
    expectations: Sequence[str],
    options: dict[str, Any],
    example: str,
    limits: Limits,
    csv: Path | None,
    html: Path | None,
    json: bool,
) -> int:
    """Check every submission, print the table, and return the exit code.

    The files are written anew after each submission, so that they are whole whenever the command ends.

    Args:
        folder: The folder of submissions.
        entry: The name of the class or function that each of them defines.
        assignments: Arguments of the constructor as "name=value". Each value is a Python literal, an expression, or
            else text.
        expectations: Known findings as "name=reason".
        options: Other options of `check`.
        example: The arguments of a call as a Python expression; "" if they are not given.
        limits: What the process of a submission may use.
        csv: The file for the table as CSV.
        html: The file for the table as a page.
        json: Whether to print the table as JSON.

    Returns:
        0 if no submission has a bug and all could be checked, 2 if none could be checked, and otherwise 1.

    Raises:
        ArgumentError: An argument is malformed, the folder has no submissions, or a file cannot be written.
    """
    if not entry.replace(".", "_").isidentifier():
        raise ArgumentError(
            "--entry",
            expected="the name of the class or function that every submission defines",
            received=repr(entry),
            remedy="Write --entry MultiHeadAttention, for example.",
        )
    arguments = dict(pairs(assignments, "--with"))
    options = {**options, "expected_failures": expected_by(expectations)}
    submissions = find_submissions(folder)
    grades: list[Grade] = []

    def write() -> None:
        _write(csv, "--csv", lambda: as_csv(grades))
        _write(html, "--html", lambda: as_page(grades, entry=entry, submissions=len(submissions)))

    write()  # files that cannot be written are an error before the long work
    try:
        with progress(len(submissions)) as announce:
            for submission in submissions:
                announce(submission.name)
                grades.append(
                    graded(
                        submission,
                        entry,
                        arguments=arguments,
                        options=options,
                        example=example,
                        limits=limits,
                    )
                )
                write()
    finally:  # also after Ctrl-C
        print_out(as_json(grades) if json else as_text(grades))
    return exit_code(grades)


def exit_code(grades: Sequence[Grade]) -> int:
    """Return the exit code for the grades of all submissions."""
    statuses = {grade.status for grade in grades}
    if statuses == {"ok"}:
        return ALL_OK
    return SOME_BAD if statuses & {"ok", "bug"} else NONE_CHECKED


def _write(path: Path | None, option: str, content: Callable[[], str]) -> None:
    if path is not None:
        with reserved(path, option) as write:
            write(content())
