"""What the site's pages and the README show can be run. Sphinx runs the cells of notebooks itself."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from heedful.cli import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = sorted([*DOCS.glob("*.md"), *DOCS.glob("learn/*.md")])
COMMANDS = typer.main.get_command(app).commands


def blocks(path: Path, language: str) -> list[str]:
    """Return the blocks of code in a language."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def shown_commands(path: Path) -> list[list[str]]:
    """Return the calls of heedful in the blocks of commands, each as its arguments."""
    lines = [
        line for block in blocks(path, "sh") for line in block.replace("\\\n", "").splitlines()
    ]
    calls = [shlex.split(line.split(" < ")[0], comments=True) for line in lines]
    return [
        call[call.index("heedful") + 1 :]
        for call in calls
        if "heedful" in call and call[0] != "pip"
    ]


@pytest.mark.parametrize(
    "path", [path for path in WRITTEN if blocks(path, "python")], ids=lambda path: path.stem
)
def test_python_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(path, "python"):
        exec(compile(block, path.name, "exec"), names)
    assert names


def test_every_command_shown_has_the_options_shown():
    """Options that do not exist are an error of the parser."""
    shown = [call for path in (ROOT / "README.md", *WRITTEN) for call in shown_commands(path)]
    assert len(shown) > 20
    for name, *arguments in shown:
        command = COMMANDS[name]
        command.make_parser(command.context_class(command)).parse_args(arguments)
        assert name in COMMANDS
