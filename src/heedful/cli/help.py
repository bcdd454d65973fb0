"""How help looks: wrapped at the width of the terminal, with examples."""

import shutil
import textwrap
from functools import partial
from typing import Any

from typer.core import TyperCommand

from heedful.cli.examples import EXAMPLES, FIRST_STEPS, MORE
from heedful.screen import WIDTH

NARROW: int = 60  # columns


def columns() -> int:
    """Return the number of columns that help may use."""
    return max(20, min(shutil.get_terminal_size((80, 24)).columns, WIDTH))


class CommandWithExamples(TyperCommand):
    """A command whose help ends with examples."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, on a narrow terminal with the meaning of long options below their names."""
        if formatter.width < NARROW:
            formatter.write_dl = partial(formatter.write_dl, col_max=NARROW // 4)
        super().format_help(ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples: each command, and below it what it does."""
        with formatter.section("Examples"):
            for command, meaning in EXAMPLES.get(self.name or "", ()):
                formatter.write("\n".join(_example(command, meaning)) + "\n")


def first_steps() -> str:
    """Return what one can do next."""
    width = columns()
    lines = textwrap.wrap(
        "heedful: attention for PyTorch that you can read, check, see and run fast.", width
    )
    for verb, command, meaning in FIRST_STEPS:
        lines += ["", verb] if verb else []
        lines += _example(command, meaning)
    return "\n".join([*lines, "", *textwrap.wrap(MORE, width, break_on_hyphens=False)])


def _example(command: str, meaning: str) -> list[str]:
    """Return a command, continued where a terminal is narrow as a shell reads it, and what it does."""
    width = columns() - 2
    parts = textwrap.wrap(
        command, width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    shown = [f"  {part} \\" for part in parts[:-1]] + [f"  {parts[-1]}"]
    return shown + textwrap.wrap(
        meaning, width, initial_indent="      ", subsequent_indent="      "
    )
