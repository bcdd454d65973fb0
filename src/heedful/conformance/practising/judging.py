"""The verdict on a learner's file, which does not say where the bug is."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from heedful.conformance.own_process import check_in_own_process
from heedful.conformance.practising.exercise import Exercise
from heedful.conformance.reporting.report import Report

KEPT = frozenset({"causal", "window", "scale", "heads", "dropout"})
"""The facts whose values a repair keeps. Others, such as the form of a mask, may change, but not disappear."""


@dataclass(frozen=True)
class Verdict:
    """What is to be said about a learner's file.

    Attributes:
        solved: Whether the bug is gone and nothing new came.
        text: A sentence or two.
    """

    solved: bool
    text: str


def judged(exercise: Exercise, path: Path) -> Verdict:
    """Return the verdict on the file in which a learner has looked for the bug of an exercise.

    Raises:
        HeedfulError: The module in the file cannot be imported, built or called.
    """
    report = check_file(exercise, path)
    found = {it.name: it for it in report.findings if it.level in ("bug", "suspicious")}
    if exercise.finding in found:
        return Verdict(False, f"{exercise.finding} is still there.")
    if found:
        proofs = "\n".join(f"{name}: {finding.proof}" for name, finding in found.items())
        return Verdict(False, f"{exercise.finding} is gone, but something new came.\n{proofs}")
    if losses := _losses(check_source(exercise, exercise.right), report):
        text = "\n".join(losses)
        return Verdict(False, f"{exercise.finding} is gone, but so is something else.\n{text}")
    return Verdict(True, f"{exercise.finding} is gone, and nothing new came. Well done!")


def check_source(exercise: Exercise, source: str) -> Report:
    """Check a source of an exercise."""
    with tempfile.TemporaryDirectory(prefix="heedful-") as folder:
        path = Path(folder, exercise.file)
        path.write_text(source, encoding="utf-8")
        return check_file(exercise, path)


def check_file(exercise: Exercise, path: Path) -> Report:
    """Check the module of an exercise in a file.

    Raises:
        HeedfulError: The module cannot be imported, built or called.
    """
    target = f"{path}:{exercise.entry}"
    return check_in_own_process(target, arguments=exercise.arguments, options=exercise.options)


def _losses(right: Report, report: Report) -> list[str]:
    """Return what the check knows about the right module and does not find in another one."""
    expected, found = _facts(right), _facts(report)
    return [
        f"{name}: expected {value}; found {found.get(name, 'none')}"
        for name, value in expected.items()
        if name not in found or (name in KEPT and found[name] != value)
    ]


def _facts(report: Report) -> dict[str, str]:
    return {fact.name: fact.value for fact in report.facts}
