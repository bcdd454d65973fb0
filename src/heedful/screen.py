"""Printing of reports and progress: in color on a terminal, plain where the output is piped."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:  # rich takes a tenth of a second to import, so only commands that print import it
    from rich.console import Console
    from rich.table import Table

WIDTH: int = 100
IN_ASCII: dict[int, str] = str.maketrans(
    {
        "×": "x",
        "−": "-",
        "–": "-",
        "─": "-",
        "…": "...",
        "∞": "inf",
        "√": "sqrt ",
        "≥": ">=",
        "≤": "<=",
        "→": "->",
        "“": '"',
        "”": '"',
        "’": "'",
        "·": ".",
        "✓": "ok",
        "✗": "x",
        "ᵀ": "^T",
        "µ": "u",
        "≈": "~",
        "≠": "!=",
    }
)
"""The signs that the commands print, in ASCII."""
UNLIMITED: int = 100_000  # columns of a text that is not wrapped


def columns(stream: TextIO, width: int = WIDTH) -> int:
    """Return the number of columns for texts on a stream: those of a narrower terminal, or else the maximum."""
    return min(width, shutil.get_terminal_size().columns) if stream.isatty() else width


def console_for(stream: TextIO, width: int = WIDTH) -> Console:
    """Return a console that collects its output for `printed`.

    Args:
        stream: Where the text will be written. The console uses the colors that this stream supports, and none
            unless it is a terminal.
        width: The maximum number of columns. A narrower terminal's width takes precedence.
    """
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        force_terminal=stream.isatty(),
        height=25,  # rich takes no width without a height where TERM=dumb
        width=columns(stream, width),
        highlight=False,
        emoji=False,
    )


@dataclass(frozen=True)
class Abilities:
    """What a screen can show.

    Attributes:
        width: The number of columns.
        colors: 0, 16, or many.
        unicode: Whether it has more characters than ASCII.
    """

    width: int
    colors: int
    unicode: bool

    @classmethod
    def of(cls, console: Console, stream: TextIO) -> Abilities:
        """Return what a console of `console_for`, for a stream, can show."""
        systems = {None: 0, "standard": 16, "windows": 16}
        colors = 0 if console.no_color else systems.get(console.color_system, 256)
        return cls(console.width, colors, has_unicode(stream))


def has_unicode(stream: TextIO) -> bool:
    """Return whether a stream has more characters than ASCII.

    Python writes UTF-8 in the locale "C", too, but a terminal that was told of that locale need not understand it.
    """
    encoding = (stream.encoding or "utf-8").lower().replace("-", "")
    if not encoding.startswith("utf"):
        return False
    if not stream.isatty():
        return True
    return (os.environ.get("LC_ALL") or os.environ.get("LANG")) not in ("C", "POSIX")


def printed(console: Console) -> str:
    """Return the text printed on a console of `console_for`, without trailing spaces."""
    text = cast(io.StringIO, console.file).getvalue()
    return "\n".join(line.rstrip() for line in text.splitlines())


def with_unit(amount: float, unit: str, base: int = 1024) -> str:
    """Format an amount with a prefix, in units of 1024 or 1000.

    >>> with_unit(1536, "B"), with_unit(2e12, "FLOP", 1000)
    ('1.5 KiB', '2 TFLOP')
    """
    prefixes = ("", "Ki", "Mi", "Gi", "Ti") if base == 1024 else ("", "k", "M", "G", "T")
    for prefix in prefixes[:-1]:
        if amount < base:
            return f"{amount:.3g} {prefix}{unit}"
        amount /= base
    return f"{amount:.3g} {prefixes[-1]}{unit}"


def plain_table() -> Table:
    """Return an empty table without borders and with dim headers."""
    from rich.table import Table

    return Table(box=None, padding=(0, 2, 0, 0), header_style="dim")


def aligned(rows: Iterable[Sequence[str]], stream: TextIO | None = None) -> str:
    """Return rows of texts as a table of plain text, whose columns are as wide as their longest text.

    Args:
        rows: The rows.
        stream: Where the table will be written: long texts are folded to its columns. None: they are not.

    >>> print(aligned([("name", "shape"), ("scores", "2 × 3")]))
    name    shape
    scores  2 × 3
    """
    from rich.text import Text

    table = plain_table()
    table.show_header = False
    for row in rows:
        table.add_row(*map(Text, row))
    width = columns(stream) if stream else UNLIMITED
    console = console_for(io.StringIO(), width)
    console.print(table)
    return printed(console)


def wrapped(text: str, stream: TextIO) -> str:
    """Return text with its lines folded to the columns of a stream, except for indented ones, which are code."""
    return "\n".join(
        line
        if line.startswith(" ")
        else textwrap.fill(line, columns(stream), break_on_hyphens=False)
        for line in text.splitlines()
    )


@contextmanager
def progress(stages: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on stderr while the block runs, if stderr is a terminal.

    The bar is drawn only when a stage begins: a spinner would disturb what is being timed.

    Args:
        stages: The number of stages.

    Yields:
        A function to call with the description of each stage as it begins.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description} …", markup=False))
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("starting", total=stages)
        begun = 0

        def announce(stage: str) -> None:
            nonlocal begun
            begun += 1
            bar.update(task, completed=begun, description=stage, refresh=True)

        yield announce


def visible(text: str) -> str:
    r"""Return the text with control characters as escapes, so that a terminal shows them and does not obey them.

    Args:
        text: One line of text, for example an error that quotes a file. Line breaks are escaped as well.

    Examples:
        >>> print(visible("\x1b[2Jé\n"))
        \x1b[2Jé\n
    """
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def without_controls(text: str) -> str:
    r"""Return the text with control characters as escapes, except for tabs and line feeds.

    Args:
        text: Any number of lines, for example the output of a model.

    Examples:
        >>> print(without_controls("one\ntwo\x1b[2J"))
        one
        two\x1b[2J
    """
    return "".join(
        _escaped(letter)
        if unicodedata.category(letter) == "Cc" and letter not in "\t\n"
        else letter
        for letter in text
    )


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def print_out(text: str) -> None:
    """Print to stdout, ignoring a closed pipe (`heedful tour | head`).

    Signs that stdout lacks are written in ASCII, and other characters that it lacks are replaced by question marks.
    """
    encoding = sys.stdout.encoding
    try:
        if not has_unicode(sys.stdout):
            text = text.translate(IN_ASCII)
        print(text.encode(encoding, "replace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Python flushes stdout again when it exits, and that flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
