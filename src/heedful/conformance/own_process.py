"""The check of a command line's target in a process of its own, limited in time and memory."""

from __future__ import annotations

import codecs
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from heedful.conformance.answer import MAX_ANSWER, Request, parse_answer
from heedful.conformance.reporting.report import Report
from heedful.errors import ArgumentError
from heedful.reading import read_file
from heedful.screen import without_controls

SECONDS: float = 120.0
"""The time limit of a check, more than ten times what the check of a large module takes."""

FIX_SECONDS: float = 90.0
"""The time that the search for fixes may take besides."""

WORKER = "heedful.conformance.worker"


def check_in_own_process(
    target: str,
    *,
    arguments: Mapping[str, str],
    options: Mapping[str, Any],
    example: str = "",
    example_from: str = "",
) -> Report:
    """Check a target in another process, and return its report.

    What the target prints goes to stderr, also if it writes to a file descriptor. Control characters in it and in the
    report are escaped.

    Args:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        arguments: The arguments of the constructor. Each value is a Python literal, or else text.
        options: Other options of `check`, as values that JSON can hold.
        example: The arguments of a call as a Python expression; "" if they are not given.
        example_from: A test that calls the target, as "path/to/test_file.py::test_name"; "" if none is given.

    Raises:
        HeedfulError: The target cannot be imported, built or called, or it ends the process, or it takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="heedful-") as folder:
        nonce = secrets.token_hex()
        request = Request(target, dict(arguments), dict(options), nonce, example, example_from)
        Path(folder, "request").write_text(request.to_json(), encoding="ascii")
        seconds = SECONDS + (FIX_SECONDS if options.get("fix") else 0.0)
        end = _run([sys.executable, "-P", "-m", WORKER, folder], seconds)
        try:
            text = read_file(Path(folder, "answer"), MAX_ANSWER)
            outcome = parse_answer(text, request.nonce)
        except (OSError, ValueError) as error:
            raise ArgumentError(
                "TARGET",
                expected="a module that can be imported, built and called",
                received=f"{target}, {end} and without an answer",
                remedy="Import it and call it in Python to see where that happens.",
            ) from error
    if isinstance(outcome, Report):
        return outcome
    raise outcome


def _run(command: list[str], seconds: float) -> str:
    """Run a command for a limited time, copy its output to stderr, and return how it ended: "which …"."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    copying = threading.Thread(target=_copy, args=(process.stdout, sys.stderr), daemon=True)
    copying.start()
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _kill(process)
        copying.join(timeout=1.0)
    return _described(code, seconds)


def _described(code: int | None, seconds: float) -> str:
    """Return how a process ended by its exit code, which is None if it did not end: "which …"."""
    if code is None:
        return f"which did not finish within {seconds:.0f} s"
    if code < 0:
        return f"which ended the process by the signal {signal.Signals(-code).name}"
    return f"which ended the process with exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and on POSIX also those that it started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _copy(source: IO[bytes], destination: IO[str] | None) -> None:
    """Copy text as it arrives; read on if it can no longer be written, because the writer would wait."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with source:
        while chunk := os.read(source.fileno(), 65536):
            text = without_controls(decoder.decode(chunk))
            if destination is not None:  # it is None if stderr is closed
                with contextlib.suppress(OSError, ValueError):
                    destination.write(text)
                    destination.flush()
