"""What commands print: in colour on a terminal, plain where it is piped."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
ERASE_LINE = "\r\x1b[2K"


def console_for(stream: TextIO, width: int = WIDTH) -> Console:
    """A console that keeps what it is given (`printed` has it), in the colours that the stream can show.

    Args:
        stream: where the text will go; no colours unless it is a terminal.
        width: the most columns; a narrower terminal gets its own.
    """
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        force_terminal=stream.isatty(),
        width=min(width, shutil.get_terminal_size().columns) if stream.isatty() else width,
        highlight=False,
        emoji=False,
    )


def printed(console: Console) -> str:
    """What was printed on a console of `console_for`, without spaces at the ends of lines."""
    text = cast(io.StringIO, console.file).getvalue()
    return "\n".join(line.rstrip() for line in text.splitlines())


@contextmanager
def progress(stages: int) -> Iterator[Callable[[str], None]]:
    """Say on stderr what is being done, where that is a terminal; nothing spins, for it would slow a timing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    begun = 0

    def announce(stage: str) -> None:
        nonlocal begun
        begun += 1
        print(f"{ERASE_LINE}{begun}/{stages} {stage} …", end="", file=sys.stderr, flush=True)

    try:
        yield announce
    finally:
        print(ERASE_LINE, end="", file=sys.stderr, flush=True)


def print_out(text: str) -> None:
    """Print to stdout, quietly where the reader has gone (`heedful tour | head`)."""
    encoding = sys.stdout.encoding
    try:
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Python flushes stdout once more as it ends, and that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
