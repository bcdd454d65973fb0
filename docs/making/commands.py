"""The help of every command, as `heedful COMMAND --help` prints it."""

from pathlib import Path

import typer
from typer.testing import CliRunner

from heedful.cli import app
from making.markdown import code_block

WIDTH = "96"


def write_commands(path: Path) -> None:
    """Write the page of all commands."""
    parts = ["# Commands", "Each command says this with `--help`."]
    for name in command_names():
        parts += [f"## heedful {name}", code_block(_help(name), "text")]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def command_names() -> list[str]:
    """Return the names of all commands."""
    return sorted(typer.main.get_command(app).commands)


def _help(name: str) -> str:
    environment = {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1"}
    return CliRunner().invoke(app, [name, "--help"], prog_name="heedful", env=environment).stdout
