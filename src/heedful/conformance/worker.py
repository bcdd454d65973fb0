"""The check of a command line's target in a process of its own, limited in time and memory."""

from __future__ import annotations

import ast
import codecs
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from heedful.conformance.calling.loading import loaded
from heedful.conformance.check import check
from heedful.conformance.reporting.report import Report
from heedful.errors import ArgumentError, HeedfulError

SECONDS: float = 120.0
"""The time limit of a check, more than ten times what the check of a large module takes."""

FIX_SECONDS: float = 90.0
"""The time that the search for fixes may take besides."""

MEMORY_SHARE = 0.75
"""The share of the machine's memory that the process of a target may allocate."""


def check_in_own_process(
    target: str, *, arguments: Mapping[str, str], options: Mapping[str, Any]
) -> Report:
    """Check a target in another process, and return its report.

    What the target prints goes to stderr, also if it writes to a file descriptor.

    Args:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        arguments: The arguments of the constructor. Each value is a Python literal, or else text.
        options: Other options of `check`, as values that JSON can hold.

    Raises:
        ArgumentError: The target cannot be imported, built or called, or it ends the process, or it takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="heedful-") as folder:
        answer = Path(folder, "answer")
        request = json.dumps({"target": target, "arguments": arguments, "options": options})
        seconds = SECONDS + (FIX_SECONDS if options.get("fix") else 0.0)
        end = _run([sys.executable, "-P", "-m", __name__, str(answer), request], seconds)
        if not answer.exists():
            raise ArgumentError(
                "TARGET",
                expected="a module that can be imported, built and called",
                received=f"{target}, {end}",
                remedy="Import it and call it in Python to see where that happens.",
            )
        outcome = pickle.loads(answer.read_bytes())
    if isinstance(outcome, HeedfulError):
        raise outcome
    return outcome


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
        return f"which did not finish within {seconds:.0f} s"
    finally:
        _kill(process)
        copying.join(timeout=1.0)
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


def _copy(source: IO[bytes], destination: IO[str]) -> None:
    """Copy text as it arrives."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with source:
        while chunk := os.read(source.fileno(), 65536):
            destination.write(decoder.decode(chunk))
            destination.flush()


def _answer(target: str, arguments: Mapping[str, str], options: Mapping[str, Any]) -> object:
    """Return the report on a target, or the error that its user made."""
    try:
        values = {name: _literal(text) for name, text in arguments.items()}
        with contextlib.redirect_stdout(sys.stderr), loaded(target) as definition:
            return check(definition, arguments=values, **options)
    except HeedfulError as error:
        return error


def _literal(text: str) -> Any:
    """Return the Python literal that a text stands for, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text


def _limit_memory() -> None:
    """Limit the memory that this process may allocate, where the system can."""
    try:
        import resource
    except ImportError:  # on Windows
        return
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    limit = int(MEMORY_SHARE * pages * page)
    with contextlib.suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Check the target of a request, the second argument, and write the answer to a file, the first argument."""
    answer, request = Path(sys.argv[1]), json.loads(sys.argv[2])
    del sys.argv[1:]
    _limit_memory()
    outcome = pickle.dumps(_answer(**request))
    part = answer.with_suffix(".part")
    part.write_bytes(outcome)
    part.replace(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for what the target may have left running


if __name__ == "__main__":
    main()
