"""`heedful check --fix` and `--write`: the diffs, the files and the exit codes."""

import json
import subprocess

import pytest
from typer.testing import CliRunner

from heedful.cli import app
from heedful.conformance import command
from heedful.conformance.reporting.fix import Fix
from heedful.errors import ArgumentError

RIGHT = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1) @ value  # the context
"""
WRONG = RIGHT.replace("dim=-1", "dim=1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(WRONG)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, ["check", "mine.py", *arguments])


def test_fix_prints_a_diff_that_patch_applies_and_changes_nothing(folder):
    result = run("--fix")
    assert result.exit_code == 1, result.output
    assert (folder / "mine.py").read_text() == WRONG
    assert sorted(path.name for path in folder.iterdir()) == ["mine.py"]
    diff = result.stdout[result.stdout.index("--- mine.py") :]
    subprocess.run(["git", "apply", "-p0"], input=diff, text=True, check=True, cwd=folder)
    assert (folder / "mine.py").read_text() == RIGHT


def test_write_changes_the_file_and_exits_with_0_if_no_bug_is_left(folder):
    (folder / "mine.py").chmod(0o755)
    result = run("--write", "--format", "json")
    assert result.exit_code == 0, result.output
    assert (folder / "mine.py").read_text() == RIGHT
    assert (folder / "mine.py").stat().st_mode & 0o777 == 0o755
    (fix,) = json.loads(result.stdout)["fixes"]
    assert fix["finding"] == "softmax-wrong-dim"
    assert fix["diff"].startswith("--- mine.py\n+++ mine.py\n")
    assert "Wrote 1 fix to" in result.stderr


def test_a_file_that_changed_since_the_check_is_not_written(folder):
    fix = Fix("softmax-wrong-dim", str(folder / "mine.py"), WRONG, RIGHT)
    (folder / "mine.py").write_text(f"{WRONG}# changed\n")
    with pytest.raises(ArgumentError, match="has changed since"):
        command.write_fixes([fix])
    assert (folder / "mine.py").read_text() == f"{WRONG}# changed\n"
    assert sorted(path.name for path in folder.iterdir()) == ["mine.py"]


def test_a_link_is_not_written(folder):
    (folder / "mine.py").rename(folder / "real.py")
    (folder / "mine.py").symlink_to("real.py")
    with pytest.raises(ArgumentError, match="symbolic link"):
        command.write_fixes([Fix("scale-missing", str(folder / "mine.py"), WRONG, RIGHT)])
    assert (folder / "real.py").read_text() == WRONG
