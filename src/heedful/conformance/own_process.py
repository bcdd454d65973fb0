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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from heedful.conformance.answer import MAX_ANSWER, Request, parse_answer
from heedful.conformance.reporting.report import Report
from heedful.errors import ArgumentError
from heedful.reading import read_file
from heedful.screen import without_controls
from heedful.signals import raising_at_signals

SECONDS: float = 180.0
"""The time limit of a check, more than the calls and the probes take that reach their own limits."""

FIX_SECONDS: float = 90.0
"""The time that the search for fixes may take besides."""

RANKS_SECONDS: float = 300.0
"""The time limit of a check on many ranks, which runs the target once for each layout of its tokens."""

WAITING: Mapping[str, str] = {"OMP_WAIT_POLICY": "passive"}
"""Threads that wait for one another leave the processor to others. Otherwise three checks at once on two cores take
five times as long as one."""

WITHOUT_GPUS: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": ""}
"""The check runs on the CPU, so code that asks whether there is a GPU and makes its mask there must find none."""

WORKER = "heedful.conformance.worker"


@dataclass(frozen=True)
class Limits:
    """What the process of a target may use.

    Attributes:
        seconds: The time; None for the usual limit.
        memory: The number of bytes that it may allocate; None for a share of the machine's memory.
    """

    seconds: float | None = None
    memory: int | None = None


class NoAnswerError(ArgumentError):
    """The process of a target ended without an answer, or did not end in time.

    Args:
        target: The target, as the user named it.
        code: The exit code, negative for a signal; None if the process did not end in time.
        seconds: The time limit.

    Attributes:
        end: How it ended: "which …".
    """

    def __init__(self, target: str, code: int | None, seconds: float) -> None:
        super().__init__(
            "TARGET",
            expected="a module that can be imported, built and called",
            received=f"{target}, {_described(code, seconds)} and without an answer",
            remedy="Import it and call it in Python to see where that happens.",
        )
        self.end: str = _described(code, seconds)
        self.target: str = target
        self.code: int | None = code
        self.seconds: float = seconds

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error as a call that builds it again."""
        return type(self), (self.target, self.code, self.seconds)


def check_in_own_process(
    target: str,
    *,
    arguments: Mapping[str, str],
    options: Mapping[str, Any],
    example: str = "",
    example_from: str = "",
    limits: Limits = Limits(),
    folder: Path | None = None,
    quiet: bool = False,
) -> Report:
    """Check a target in another process, and return its report.

    What the target prints goes to stderr, also if it writes to a file descriptor, unless the check is quiet. Control
    characters in it and in the report are escaped.

    Args:
        target: The target as "path/to/file.py:Name" or "package.module:Name".
        arguments: The arguments of the constructor. Each value is a Python literal, an expression, or else text.
        options: Other options of `check`, as values that JSON can hold.
        example: The arguments of a call as a Python expression; "" if they are not given.
        example_from: A test that calls the target, as "path/to/test_file.py::test_name"; "" if none is given.
        limits: What the process may use.
        folder: The working folder of the process; None for the current one.
        quiet: Whether to drop what the target prints.

    Raises:
        NoAnswerError: The target ends the process, or it takes too long.
        HeedfulError: The target cannot be imported, built or called.
    """
    with tempfile.TemporaryDirectory(prefix="heedful-") as exchange:
        nonce = secrets.token_hex()
        request = Request(
            target, dict(arguments), dict(options), nonce, example, example_from, limits.memory
        )
        Path(exchange, "request").write_text(request.to_json(), encoding="ascii")
        seconds = (limits.seconds or SECONDS) + (FIX_SECONDS if options.get("fix") else 0.0)
        output = None if quiet else sys.stderr
        command = [sys.executable, "-P", "-m", WORKER, exchange]
        code = _run(command, seconds, output, folder)
        try:
            text = read_file(Path(exchange, "answer"), MAX_ANSWER)
            outcome = parse_answer(text, request.nonce)
        except (OSError, ValueError) as error:
            raise NoAnswerError(target, code, seconds) from error
    if isinstance(outcome, Report):
        return outcome
    raise outcome


def _run(
    command: list[str], seconds: float, output: IO[str] | None, folder: Path | None
) -> int | None:
    """Run a command for a limited time, copy its output, and return its exit code; None if it did not end in time."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**WAITING, **os.environ, **WITHOUT_GPUS},
        start_new_session=True,
    )
    assert process.stdout is not None
    copying = threading.Thread(target=_copy, args=(process.stdout, output), daemon=True)
    copying.start()
    try:
        with raising_at_signals():
            return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _kill(process)
        copying.join(timeout=1.0)


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
            if destination is not None:  # it is None if stderr is closed, or nobody wants to see it
                text = without_controls(decoder.decode(chunk))
                with contextlib.suppress(OSError, ValueError):
                    destination.write(text)
                    destination.flush()
