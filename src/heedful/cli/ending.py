"""How the program ends: exit codes, and one line on stderr for every error."""

import os
import sys
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from heedful.errors import HeedfulError
from heedful.screen import visible

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130  # exit codes


DEFECT = (
    "This is a defect of heedful: please report it with the output of `heedful info` and of the same command with "
    "HEEDFUL_DEBUG=1, which shows where it happened."
)


class Commands(TyperGroup):
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
