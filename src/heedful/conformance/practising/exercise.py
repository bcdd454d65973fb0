"""Exercises: right attention modules, each with an edit that puts one bug into it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from heedful.conformance.reporting.catalogue import CATALOGUE
from heedful.errors import ArgumentError

WITHOUT_EXERCISE: dict[str, str] = {
    "rotary-layout": "Either layout is right, so there is nothing to mend.",
    "statement-contradicted": "It compares the module with what the user of the check states.",
    "lines-not-run": "It says what the check did not run, and is no bug of the module.",
    "ranks-output-differs": "It compares many processes with one.",
    "ranks-gradient-differs": "It compares the backward passes of many processes with that of one.",
    "ranks-dropout-differs": "It compares the dropout of many processes.",
    "ranks-collectives-differ": "It compares the calls that many processes make.",
    "ranks-gradient-summed": "It is a convention of attention over many processes, and no bug.",
}
"""The findings that have no exercise, each with the reason."""


@dataclass(frozen=True)
class Exercise:
    """A right attention, and an edit that puts one bug into it.

    Attributes:
        name: The name of the finding that describes the bug; further exercises on it have a number, as in
            "scale-wrong-2".
        right: The source of the right module.
        old: The text that the edit replaces, which the right module contains exactly once.
        new: The text that replaces it.
        entry: The name of the class or function to check.
        arguments: The arguments of the constructor, as text.
        options: What is known about the module, as options of `check`.
    """

    name: str
    right: str
    old: str
    new: str
    entry: str
    arguments: Mapping[str, str]
    options: Mapping[str, Any]

    @property
    def finding(self) -> str:
        """The name of the finding that describes the bug."""
        return re.sub(r"-\d+$", "", self.name)

    @property
    def file(self) -> str:
        """The name of the file that the learner gets."""
        return f"{self.name}.py"

    @property
    def source(self) -> str:
        """The source with the bug."""
        return self.right.replace(self.old, self.new)

    @property
    def line(self) -> int:
        """The first line that differs from the right module, counted from 1."""
        lines = zip(self.right.splitlines(), self.source.splitlines(), strict=False)
        return next(number for number, (right, wrong) in enumerate(lines, 1) if right != wrong)


@cache
def exercises() -> dict[str, Exercise]:
    """Return all exercises by name, in the order of the catalogue; further ones on the same finding come last."""
    folder = resources.files("heedful.conformance.practising")
    found: list[Exercise] = []
    for base, fields in tomllib.loads(folder.joinpath("exercises.toml").read_text("utf-8")).items():
        right = folder.joinpath("right", f"{base}.py.txt").read_text("utf-8")
        arguments = {name: repr(value) for name, value in fields.get("arguments", {}).items()}
        known = fields["entry"], arguments, fields.get("options", {})
        found += [
            Exercise(name, right, edit["old"], edit["new"], *known)
            for name, edit in fields["exercises"].items()
        ]
    order = list(CATALOGUE)
    found.sort(key=lambda it: (it.name != it.finding, order.index(it.finding), it.name))
    return {exercise.name: exercise for exercise in found}


def find_exercise(name: str) -> Exercise:
    """Return the exercise with a name.

    Raises:
        ArgumentError: There is none. The message has the reason or similar names.
    """
    known = exercises()
    if name in known:
        return known[name]
    similar = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    raise ArgumentError(
        "NAME",
        expected=f"the name of an exercise{' such as ' if similar else ''}{' or '.join(similar)}",
        received=repr(name),
        remedy=WITHOUT_EXERCISE.get(name, "Run `heedful practise --list` to see all names."),
    )
