"""`heedful practise`: the exercises, and the command's files, hints, verdicts and exit codes."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heedful.cli import app
from heedful.conformance.answer import Request
from heedful.conformance.practising import judging
from heedful.conformance.practising.exercise import WITHOUT_EXERCISE, Exercise, exercises
from heedful.conformance.practising.hints import MOST, STEPS, function_at, hints_for
from heedful.conformance.reporting.catalogue import CATALOGUE
from heedful.conformance.reporting.report import Report
from heedful.conformance.worker import answer_to
from heedful.errors import HeedfulError

EXERCISES = list(exercises().values())
UNUSED = exercises()["mask-unused"]


@cache
def answer(source: str, entry: str, arguments: str, options: str):
    """Return what the process of a target answers, without a process, and only once for each source."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "source.py")
        path.write_text(source)
        return answer_to(
            Request(f"{path}:{entry}", json.loads(arguments), json.loads(options), "nonce")
        )


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Check in this process, because the modules of exercises are no danger to it."""

    def check(target, *, arguments, options):
        path, _, entry = target.rpartition(":")
        known = json.dumps(arguments), json.dumps(options)
        outcome = answer(Path(path).read_text(), entry, *known)
        if isinstance(outcome, Report):
            return outcome
        raise outcome

    monkeypatch.setattr(judging, "check_in_own_process", check)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "practise"


def run(*arguments: str):
    return CliRunner().invoke(app, ["practise", *arguments])


def progress(folder: Path) -> dict:
    return json.loads((folder / "progress.json").read_text())


def right_file(exercise: Exercise, folder: Path) -> Path:
    """Return a file in which the edit of an exercise was put back."""
    path = folder / exercise.file
    path.parent.mkdir(exist_ok=True)
    path.write_text(exercise.source.replace(exercise.new, exercise.old) if exercise.new else "")
    if (
        path.read_text() != exercise.right
    ):  # the edit removed a line, or its new text is elsewhere, too
        path.write_text(exercise.right)
    return path


# --- exercises ---------------------------------------------------------------------------------------


def test_every_finding_has_an_exercise_or_a_reason():
    found = {exercise.finding for exercise in EXERCISES}
    assert found.isdisjoint(WITHOUT_EXERCISE)
    assert found | set(WITHOUT_EXERCISE) == set(CATALOGUE)
    assert set(STEPS) == found
    assert len({exercise.right for exercise in EXERCISES}) >= 8


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda it: it.name)
def test_an_exercise_has_the_named_bug_on_the_edited_line_and_no_other(exercise, folder):
    assert exercise.right.count(exercise.old) == 1
    assert exercise.source != exercise.right
    ast.parse(exercise.source)
    report = judging.check_source(exercise, exercise.source)
    bugs = [it for it in report.findings if it.level in ("bug", "suspicious")]
    assert [it.name for it in bugs] == [exercise.finding]
    place = bugs[0].place
    assert place is not None
    assert abs(place.line - exercise.line) <= 1
    text = place.source
    hints = hints_for(exercise)
    assert len(hints) == MOST
    assert bugs[0].proof in hints[0]
    assert all(text not in hint for hint in hints[:-1])
    assert text in hints[-1]
    assert f"line {place.line}" in hints[-1]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda it: it.name)
def test_the_edit_put_back_is_accepted(exercise, folder):
    verdict = judging.judged(exercise, right_file(exercise, folder))
    assert verdict.solved, verdict.text


@pytest.mark.parametrize(
    "exercise", {it.right: it for it in EXERCISES}.values(), ids=lambda it: it.entry
)
def test_a_right_module_has_no_finding_and_runs_whole(exercise):
    report = judging.check_source(exercise, exercise.right)
    assert {it.level for it in report.findings} <= {"convention"}
    assert report.coverage is not None
    assert not report.coverage.missed


def test_the_function_of_a_line():
    source = "x = 1\nclass A:\n    def f(self):\n        y = 1\n\ndef g():\n    return 2\n"
    assert [function_at(source, line) for line in (1, 4, 7)] == ["the file", "A.f", "g"]


# --- files and progress ------------------------------------------------------------------------------


def test_the_list_and_the_next_exercise(folder):
    result = run()
    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert set(exercises()) <= set(lines)
    for name, reason in WITHOUT_EXERCISE.items():
        assert any(line.startswith(name) and line.endswith(reason) for line in lines)
    first = EXERCISES[0]
    assert (folder / first.file).read_text() == first.source
    assert progress(folder)["current"] == first.name
    assert f"0 of {len(EXERCISES)} solved" in result.stdout
    assert {it.name for it in folder.iterdir()} == {first.file, "progress.json"}
    assert run("--list").exit_code == 0
    assert f"…  {first.name}" in run("--list").stdout


def test_a_changed_file_is_left_alone_until_restarted(folder):
    run("mask-unused")
    assert "your changes" not in run("mask-unused").stdout
    (folder / "mask-unused.py").write_text("mine")
    result = run("mask-unused")
    assert "has your changes and was left alone; --restart" in result.stdout
    assert (folder / "mask-unused.py").read_text() == "mine"
    assert run("mask-unused", "--restart").exit_code == 0
    assert (folder / "mask-unused.py").read_text() == UNUSED.source


def test_a_solved_exercise_is_kept_and_the_next_one_starts(folder):
    run("mask-unused")
    still = run("--check")
    assert still.exit_code == 1
    assert still.stdout == "mask-unused is still there.\n"
    right_file(UNUSED, folder)
    done = run("--check")
    assert done.exit_code == 0, done.output
    assert "mask-unused is gone, and nothing new came." in done.stdout
    assert f"1 of {len(EXERCISES)} solved" in done.stdout
    assert progress(folder)["attempts"]["mask-unused"] == {"hints": 0, "solved": True}
    again = run()
    assert "✓  mask-unused" in again.stdout
    assert (folder / EXERCISES[1].file).exists()


def test_other_bugs_and_lost_parts_are_no_solution(folder):
    run("mask-unused")
    path = folder / "mask-unused.py"
    path.write_text(UNUSED.right.replace("softmax(scores, dim=-1)", "softmax(scores, dim=-2)"))
    other = run("--check")
    assert other.exit_code == 1
    assert "mask-unused is gone, but something new came.\nsoftmax-wrong-dim: " in other.stdout
    path.write_text(UNUSED.right.replace("nn.Dropout(p_drop)", "nn.Identity()"))
    lost = run("--check")
    assert lost.exit_code == 1
    assert "so is something else.\ndropout: expected on the weights" in lost.stdout
    assert progress(folder)["attempts"]["mask-unused"]["solved"] is False


def test_hints_come_one_at_a_time(folder):
    run("mask-unused")
    counts = [len(run("--hint").stdout.split(" of 4  ")) - 1 for _ in range(5)]
    assert counts == [1, 2, 3, 4, 4]
    assert progress(folder)["attempts"]["mask-unused"]["hints"] == MOST
    assert "started, 4 hints" in run("--list").stdout


# --- what cannot be used -----------------------------------------------------------------------------


def error_of(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
    return result.stderr


def test_names_without_an_exercise(folder):
    assert "such as mask-inverted" in error_of("mask-invertd")
    assert "Either layout is right" in error_of("rotary-layout")
    assert "Run `heedful practise` to start one" in error_of("--check")
    assert "Run `heedful practise mask-unused` to write it" in error_of("mask-unused", "--hint")
    assert not folder.exists()


def test_a_file_that_cannot_be_imported(folder):
    run("mask-unused")
    (folder / "mask-unused.py").write_text("def broken(:\n")
    assert "SyntaxError" in error_of("--check")
    assert run("--hint").exit_code == 0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"[" * 100_000,
        b'{"current": 1, "attempts": {}}',
        b'{"current": "", "attempts": {"mask-unused": 3}}',
        b'{"current": "", "attempts": {"mask-unused": {"hints": -1, "solved": true}}}',
        b'{"current": "", "attempts": {"mask-unused": {"hints": 1}}}',
        b'{"current": "", "attempts": {}, "more": 1}',
    ],
)
def test_damaged_progress_is_an_error_and_stays(folder, content):
    folder.mkdir()
    (folder / "progress.json").write_bytes(content)
    for arguments in ((), ("--list",), ("mask-unused",), ("--check",), ("--hint",)):
        assert "progress.json" in error_of(*arguments)
    assert (folder / "progress.json").read_bytes() == content
    assert len(list(folder.iterdir())) == 1


def test_progress_of_another_version_is_kept(folder):
    folder.mkdir()
    attempts = {"no-longer-known": {"hints": 2, "solved": True}}
    state = {"current": "no-longer-known", "attempts": attempts}
    (folder / "progress.json").write_text(json.dumps(state))
    assert "such as" in error_of("--check") or "to see all names" in error_of("--check")
    assert run().exit_code == 0
    assert progress(folder)["attempts"]["no-longer-known"] == attempts["no-longer-known"]


def test_a_folder_that_cannot_be_made(folder):
    folder.write_text("a file")
    assert "--in" in error_of()
    assert "--in" in error_of("--in", "practise/below")


def test_an_exercise_whose_bug_is_not_found_is_an_error(monkeypatch):
    monkeypatch.setattr(
        "heedful.conformance.practising.hints.check_source",
        lambda exercise, source: Report("nothing", ()),
    )
    with pytest.raises(HeedfulError, match="does not find this bug"):
        hints_for(UNUSED)


def test_as_a_program(folder):
    """The learner's file is checked in a process of its own: one that exits is answered."""
    command = [sys.executable, "-m", "heedful", "practise"]
    done = subprocess.run([*command, "mask-unused"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder / "mask-unused.py").write_text("raise SystemExit(0)\n")
    done = subprocess.run([*command, "--check"], capture_output=True, text=True)
    assert done.returncode == 2, done.stdout
    assert "SystemExit: 0" in done.stderr
