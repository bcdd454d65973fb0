"""The process that runs the target of `heedful check` and writes the answer: `python -m heedful.conformance.worker`.

A target may replace what it finds in any module, so the functions that end the process are bound before it is loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from os import _exit, getpid
from pathlib import Path

from heedful.conformance.answer import Request, answer_as_json
from heedful.conformance.calling.command_examples import (
    captured_from_named_test,
    evaluated_example,
    evaluated_values,
)
from heedful.conformance.calling.exceptions import described_with_line
from heedful.conformance.calling.loading import loaded
from heedful.conformance.calling.options import in_command
from heedful.conformance.checking import check
from heedful.conformance.reporting.report import Report
from heedful.errors import ArgumentError, HeedfulError

MEMORY_SHARE = 0.75
"""The share of the machine's memory that the process of a target may allocate."""


def answer_to(request: Request) -> Report | HeedfulError:
    """Return the report on a target, or the error that its user made."""
    if "ranks" in request.options:
        return _answer_on_ranks(request)
    try:
        with (
            in_command(),
            contextlib.redirect_stdout(sys.stderr),
            loaded(request.target) as definition,
        ):
            if request.example_from:
                capture = captured_from_named_test(request.example_from, definition)
                return check(capture.module, example=capture.example, **request.options)
            example = (
                evaluated_example(request.example, request.target) if request.example else None
            )
            values = evaluated_values(request.arguments, request.target)
            return check(definition, example=example, arguments=values, **request.options)
    except HeedfulError as error:
        return error
    except BaseException as error:  # noqa: BLE001 - a target may raise anything, and it must have an answer
        return ArgumentError(
            "TARGET",
            expected="a module that can be imported, built and called",
            received=f"{request.target}, which raises {described_with_line(error)}",
            remedy="Import it and call it in Python to see where that happens.",
        )


def _answer_on_ranks(request: Request) -> Report | HeedfulError:
    """Return the report on a target over many ranks; it runs in their processes, and never in this one."""
    from heedful.conformance.ranks.check import check_on_ranks

    try:
        return check_on_ranks(
            request.target, arguments=request.arguments, example=request.example, **request.options
        )
    except HeedfulError as error:
        return error


def _limit_memory(limit: int | None) -> None:
    """Limit the bytes that this process may allocate, where the system can; None is a share of the machine's memory."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    if limit is None:
        pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        limit = int(MEMORY_SHARE * pages * page)
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer the request in the folder that the only argument names, in the same folder."""
    folder, process = Path(sys.argv.pop()), getpid()
    request = Request.from_json((folder / "request").read_text(encoding="ascii"))
    (folder / "request").unlink()  # the target is not told the nonce
    _limit_memory(request.memory)
    sys.dont_write_bytecode = True  # a check leaves nothing beside the target's file
    text = answer_as_json(answer_to(request), request.nonce)
    if getpid() == process:  # otherwise, the target has forked, and its parent answers
        part = folder / "part"
        try:
            part.write_text(text, encoding="ascii")
            part.replace(folder / "answer")
        except OSError as error:  # for example, the target has left no file descriptor
            print(f"The answer cannot be written: {error}", file=sys.stderr)
            _exit(1)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the target may have closed or replaced it
                stream.flush()
    _exit(0)  # without waiting for what the target may have left running


if __name__ == "__main__":
    main()
