"""`heedful grade`: one row for each submission whatever it does, the files, and the exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli import app
from heedful.conformance.grading import command
from heedful.conformance.grading.grade import Grade, graded
from heedful.conformance.grading.submissions import Submission, find_submissions
from heedful.conformance.own_process import Limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the submissions use Linux")

RIGHT = """\
import os
import sys

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, quux):
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Linear(d_model, d_model) for _ in range(quux))

    def forward(self, x):
        query, key, value = self.W_query(x), self.W_key(x), self.W_value(x)
        scores = query @ key.transpose(-2, -1) / key.shape[-1] ** 0.5
        return scores.softmax(dim=-1) @ value
"""
UNSCALED = RIGHT.replace(" / key.shape[-1] ** 0.5", "")
LINE = 1 + UNSCALED.splitlines().index("        scores = query @ key.transpose(-2, -1)")
OPTIONS = ["--entry", "Attention", "--with", "quux=3", "--time", "20"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Create an empty folder of submissions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "class").mkdir()
    return tmp_path / "class"


def run(*arguments: str):
    return CliRunner().invoke(app, ["grade", "class", *OPTIONS, *arguments])


def rows(path: str) -> dict[str, list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["submission", "verdict", "findings", "remark"]
    return {name: cells for name, *cells in rows}


# --- rows --------------------------------------------------------------------------------------------

HOSTILE = {
    "exits": ("import os; os._exit(0)", "crashed", "exit code 0"),
    "aborts": ("import os; os.abort()", "crashed", "SIGABRT"),
    "grows": ("x = bytearray(10**11)", "could not be called", "MemoryError"),
    "raises": ("raise ValueError('no\\x1b[2J')", "could not be called", r"no\x1b[2J"),
    "broken": ("def Attention(:", "could not be called", "SyntaxError"),
    "forks": ("import os; os.fork()", "ok", ""),
    "writes": ("open('right.py', 'w').write('x = 1'); print('noise')", "ok", ""),
    "shadows": ("import random; random.Random = None", "ok", ""),
}


def test_each_submission_costs_only_its_own_row(folder):
    (folder / "right.py").write_text(RIGHT)
    (folder / "unscaled.py").write_text(UNSCALED)
    (folder / "random.py").write_text("raise ValueError('this is no place for it')\n")
    (folder / "nothing.py").write_text("")
    (folder / "notes.txt").write_text("no submission")
    (folder / ".hidden.py").write_text("")
    os.mkfifo(folder / "fifo.py")
    (folder / "large.py").write_text("#" * (1 << 21))
    for name, (statement, *_) in HOSTILE.items():
        (folder / f"{name}.py").write_text(f"{statement}\n{RIGHT}")
    before = {path.name for path in folder.iterdir()}
    result = run("--csv", "grades.csv")
    assert result.exit_code == 1, result.output
    table = rows("grades.csv")
    assert len(table) == len(HOSTILE) + 6
    assert table["right.py"] == ["ok", "", "no bug"]
    assert table["unscaled.py"] == ["bug", f"scale-missing (line {LINE})", "1 bug"]
    for name in ("random.py", "nothing.py", "fifo.py", "large.py"):
        assert table[name][0] == "could not be called", name
    for name, (_, verdict, text) in HOSTILE.items():
        assert table[f"{name}.py"][0] == verdict, (name, table[f"{name}.py"])
        assert text in table[f"{name}.py"][2], name
    assert "heedful-" not in Path("grades.csv").read_text()
    assert "noise" not in result.output
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.output)
    for name, cells in table.items():
        assert name in result.stdout
        assert cells[0] in result.stdout
    assert (folder / "right.py").read_text() == RIGHT
    assert {path.name for path in folder.iterdir()} == before
    assert {path.name for path in Path.cwd().iterdir()} == {"class", "grades.csv"}


def test_submissions_that_never_end(folder, monkeypatch):
    monkeypatch.undo()  # in real processes, because the output of one of them would fill the disk
    monkeypatch.chdir(folder.parent)
    (folder / "hangs.py").write_text("while True: pass")
    (folder / "prints.py").write_text("while True: print('\\x1b[2J' * 1000)")
    result = run("--csv", "grades.csv", "--time", "3")
    assert result.exit_code == 2
    assert "\x1b" not in result.output
    timed_out = ["timed out", "", "did not finish within 3 s"]
    assert rows("grades.csv") == {"hangs.py": timed_out, "prints.py": timed_out}


def test_a_folder_is_a_submission_of_several_files(folder):
    for name in ("whole", "deep", "twice", "empty"):
        (folder / name / "parts").mkdir(parents=True)
    (folder / "whole" / "main.py").write_text("from layers import Attention\n")
    (folder / "whole" / "layers.py").write_text(UNSCALED)
    (folder / "whole" / "parts" / "old.py").write_text(RIGHT)
    (folder / "deep" / "parts" / "layers.py").write_text("class Base: pass\n" + RIGHT)
    (folder / "deep" / "broken.py").write_text("def (")
    (folder / "twice" / "a.py").write_text(RIGHT)
    (folder / "twice" / "b.py").write_text(RIGHT)
    assert run("--csv", "grades.csv").exit_code == 1
    table = rows("grades.csv")
    assert table["whole/"][:2] == ["bug", f"scale-missing (layers.py:{LINE})"]
    assert table["deep/"][0] == "ok"
    assert table["twice/"][0] == "could not be called"
    assert "a.py and b.py" in table["twice/"][2]
    assert "none that does" in table["empty/"][2]


def test_what_is_known_about_the_class_is_passed_on(folder):
    (folder / "right.py").write_text(RIGHT)
    (folder / "unscaled.py").write_text(UNSCALED)
    result = run("--causal", "--expect", "scale-missing=not taught yet", "--json")
    assert result.exit_code == 1
    grades = {it["submission"]: it for it in json.loads(result.stdout)["grades"]}
    for grade in grades.values():
        names = [it["name"] for it in grade["report"]["findings"] if it["expected"] is None]
        assert names == ["future-leak"]
    assert run("--expect", "scale-missing=not taught yet").exit_code == 0
    heads = run("--heads", "7", "--example", "torch.randn(2, 9, 24)", "--with", "d_model=24")
    assert heads.stdout.count("statement-contradicted") == 2


# --- files -------------------------------------------------------------------------------------------


def test_the_page_has_everything_and_needs_nothing_else(folder):
    (folder / "<b>.py").write_text(UNSCALED)
    (folder / "lost.py").write_text("")
    assert run("--html", "page.html").exit_code == 1
    page = Path("page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;.py" in page
    assert "<b>.py" not in page
    assert f"scale-missing (line {LINE})" in page
    assert "<mark data-line=" in page
    assert "Available names" in page or "defines no nn.Module" in page
    assert "0 ok, 1 with bugs, 1 not checked" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "<script" not in page


def test_a_spreadsheet_takes_no_name_for_a_formula(folder):
    (folder / "=1+1.py").write_text("")
    run("--csv", "grades.csv")
    assert list(rows("grades.csv")) == ["'=1+1.py"]


def test_an_interrupted_command_leaves_the_rows_so_far(folder, monkeypatch):
    (folder / "a.py").write_text(RIGHT)
    (folder / "b.py").write_text(RIGHT)

    def interrupted(submission: Submission, *arguments, **options) -> Grade:
        if submission.name == "b.py":
            raise KeyboardInterrupt
        return graded(submission, *arguments, **options)

    monkeypatch.setattr(command, "graded", interrupted)
    result = run("--csv", "grades.csv", "--html", "page.html")
    assert result.exit_code == 130
    assert list(rows("grades.csv")) == ["a.py"]
    assert "a.py" in result.stdout
    page = Path("page.html").read_text()
    assert "1 not graded yet" in page
    assert page.rstrip().endswith("</html>")


def test_as_a_program_that_is_interrupted(folder):
    (folder / "a.py").write_text("while True: pass\n")
    program = [sys.executable, "-m", "heedful", "grade", "class", *OPTIONS, "--csv", "grades.csv"]
    process = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not Path("grades.csv").exists() and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert rows("grades.csv") == {}


# --- exit codes and misuse ---------------------------------------------------------------------------


def test_exit_codes(folder):
    right, lost = folder / "right.py", folder / "lost.py"
    lost.write_text("")
    assert run().exit_code == 2
    right.write_text(RIGHT)
    assert run().exit_code == 1
    lost.unlink()
    assert run().exit_code == 0


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["grade", *arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr


def test_what_cannot_be_used(folder):
    entry = ["--entry", "Attention"]
    assert "which has none" in error_of("class", *entry)
    assert "No such file" in error_of("nowhere", *entry)
    assert "--entry" in error_of("class")
    (folder / "right.py").write_text(RIGHT)
    assert "--entry" in error_of("class", "--entry", "not a name")
    assert "NAME=VALUE" in error_of("class", *entry, "--with", "quux")
    assert "scale-missing" in error_of("class", *entry, "--expect", "scale-mising=x")
    assert "--csv" in error_of("class", *entry, "--csv", "no/where.csv")
    assert "--html" in error_of("class", *entry, "--html", "class")


def test_names_that_are_no_text(folder):
    name = os.fsdecode(b"caf\xe9.py")
    (folder / name).write_text(RIGHT)
    result = run("--csv", "grades.csv", "--html", "page.html")
    assert result.exit_code == 0, result.output
    assert list(rows("grades.csv")) == [r"caf\udce9.py"]
    assert run("--json").exit_code == 0


def test_memory_and_time_are_limited(folder):
    (folder / "slow.py").write_text("import time; time.sleep(60)\n")
    (folder / "large.py").write_text("x = bytearray(8 * 10**8)\n" + RIGHT)
    small = Limits(seconds=1.0, memory=5 * 10**8)
    grades = {
        it.name: graded(
            it, "Attention", arguments={"quux": "3"}, options={}, example="", limits=it_limits
        )
        for it in find_submissions(folder)
        for it_limits in [small if it.name == "slow.py" else Limits(20.0, 5 * 10**8)]
    }
    assert grades["slow.py"].status == "timed out"
    assert "within 1 s" in grades["slow.py"].reason
    assert "MemoryError" in grades["large.py"].reason
