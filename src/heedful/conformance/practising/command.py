"""The command `heedful practise`: write an exercise, judge the learner's file, give hints, and keep the progress."""

from __future__ import annotations

import sys
from pathlib import Path

from heedful.conformance.practising.exercise import (
    WITHOUT_EXERCISE,
    Exercise,
    exercises,
    find_exercise,
)
from heedful.conformance.practising.hints import MOST, hints_for
from heedful.conformance.practising.judging import judged
from heedful.conformance.practising.progress import Attempt, Progress
from heedful.conformance.reporting.catalogue import CATALOGUE
from heedful.errors import ArgumentError
from heedful.reading import read_file
from heedful.screen import aligned, print_out, wrapped
from heedful.writing import reserved

MAX_FILE = 1 << 20  # bytes; an exercise has some two thousand


def list_exercises(folder: Path) -> None:
    """Print every exercise with what the learner did about it, and the findings without an exercise.

    Raises:
        ArgumentError: The progress in the folder cannot be read.
    """
    progress = Progress.of(folder)
    rows = [_row(name, progress) for name in exercises()]
    solved = sum(progress.attempt(name).solved for name in exercises())
    print_out(aligned(rows, sys.stdout))
    told = f"\n{solved} of {len(rows)} solved. These findings have no exercise:"
    print_out(wrapped(told, sys.stdout))
    without = (("", name, reason) for name, reason in WITHOUT_EXERCISE.items())
    print_out(aligned(without, sys.stdout))


def start(name: str | None, folder: Path, *, restart: bool) -> None:
    """Write the file of an exercise, unless there is one that the learner may have changed.

    Args:
        name: The name of the exercise; None for the first one that is not solved.
        folder: The folder for the file.
        restart: Whether to write the exercise again and lose the learner's changes.

    Raises:
        ArgumentError: There is no such exercise, the progress cannot be read, or a file cannot be written.
    """
    progress = Progress.of(folder)
    exercise = find_exercise(name) if name else _next(progress)
    if exercise is None:
        print_out("All exercises are solved. `heedful practise NAME --restart` starts one again.")
        return
    path = folder / exercise.file
    written = restart or not path.exists()
    if written:
        _make(folder)
        with reserved(path, "--in") as write:
            write(exercise.source)
    changes = {"hints": 0, "solved": False} if restart else {}
    progress.after(exercise.name, **changes).save(folder)
    print_out(_introduction(exercise, path, written=written))


def check(name: str | None, folder: Path) -> bool:
    """Judge the learner's file, print the verdict, keep it, and return whether the exercise is solved.

    Args:
        name: The name of the exercise; None for the one that was started last.
        folder: The folder of the file.

    Raises:
        HeedfulError: There is no such exercise or file, its module cannot be imported, built or called, or the
            progress cannot be read or written.
    """
    progress = Progress.of(folder)
    exercise = _current(name, progress)
    path = _started(exercise, folder)
    verdict = judged(exercise, path)
    print_out(wrapped(verdict.text, sys.stdout))
    if verdict.solved:
        progress = progress.after(exercise.name, solved=True)
        progress.save(folder)
        solved = sum(progress.attempt(name).solved for name in exercises())
        print_out(f"{solved} of {len(exercises())} solved. `heedful practise` starts the next one.")
    return verdict.solved


def hint(name: str | None, folder: Path) -> None:
    """Print the hints that the learner has had for an exercise, and one more.

    Args:
        name: The name of the exercise; None for the one that was started last.
        folder: The folder of the file.

    Raises:
        HeedfulError: There is no such exercise or file, or the progress cannot be read or written.
    """
    progress = Progress.of(folder)
    exercise = _current(name, progress)
    _started(exercise, folder)
    count = min(progress.attempt(exercise.name).hints + 1, MOST)
    hints = hints_for(exercise)[:count]
    progress.after(exercise.name, hints=count).save(folder)
    for number, text in enumerate(hints, 1):
        print_out(wrapped(f"{number} of {MOST}  {text}", sys.stdout))


def _row(name: str, progress: Progress) -> tuple[str, str, str]:
    mark = "✓" if progress.attempt(name).solved else "…" if name in progress.attempts else " "
    return mark, name, _described(progress.attempts.get(name))


def _described(attempt: Attempt | None) -> str:
    if attempt is None:
        return ""
    state = "solved" if attempt.solved else "started"
    return f"{state}, {attempt.hints} hint{'s' * (attempt.hints != 1)}" if attempt.hints else state


def _next(progress: Progress) -> Exercise | None:
    """Return the current exercise if it is not solved, or else the first one that is not."""
    names = [progress.current, *exercises()]
    return next(
        (
            exercises()[name]
            for name in names
            if name in exercises() and not progress.attempt(name).solved
        ),
        None,
    )


def _current(name: str | None, progress: Progress) -> Exercise:
    """Return the exercise with a name, or else the one that was started last."""
    if name or progress.current:
        return find_exercise(name or progress.current)
    raise ArgumentError(
        "NAME",
        expected="the name of an exercise, because none was started in this folder",
        received="none",
        remedy="Run `heedful practise` to start one.",
    )


def _started(exercise: Exercise, folder: Path) -> Path:
    """Return the learner's file of an exercise.

    Raises:
        ArgumentError: There is none.
    """
    path = folder / exercise.file
    if path.is_file():
        return path
    raise ArgumentError(
        "NAME",
        expected=f"an exercise that was started, so that there is a file {path}",
        received=repr(exercise.name),
        remedy=f"Run `heedful practise {exercise.name}` to write it.",
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            "--in",
            expected="a folder, or the name of one that can be made",
            received=f"{folder} ({error.strerror or error})",
            remedy="Name another with --in.",
        ) from error


def _introduction(exercise: Exercise, path: Path, *, written: bool) -> str:
    meaning = CATALOGUE[exercise.finding].meaning
    lines = [
        wrapped(f"{path} has one bug, {exercise.finding}: {meaning}", sys.stdout),
        wrapped("Find the line and mend it in your editor. Then:", sys.stdout),
        f"  heedful practise {exercise.name} --check",
        "      is the bug gone, and no new one?",
        f"  heedful practise {exercise.name} --hint",
        "      one step more from it to its line",
    ]
    if not written and not _is_unchanged(exercise, path):
        changed = f"{path} has your changes and was left alone; --restart writes it again."
        lines.insert(0, wrapped(changed, sys.stdout) + "\n")
    return "\n".join(lines)


def _is_unchanged(exercise: Exercise, path: Path) -> bool:
    """Check whether a file is the exercise as it was written."""
    try:
        return read_file(path, MAX_FILE) == exercise.source.encode()
    except OSError:
        return False
