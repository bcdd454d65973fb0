"""What a check finds: findings with their proof, facts, and where in the source each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from heedful.conformance.recording.source import SourceLine

Level = Literal["bug", "convention", "suspicious", "not-testable"]
LEVELS: tuple[Level, ...] = ("bug", "suspicious", "convention", "not-testable")  # as reported


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or remarkable.

    Attributes:
        name: one of `catalogue.CATALOGUE`, such as "scale-missing".
        level: "bug"; "suspicious", wrong unless meant so; "convention", right in itself, and to be known by those who
            share weights; "not-testable".
        proof: one sentence: what was done, and what came of it.
        case: the smallest case that shows it: sizes, indices, numbers.
        place: the line that does it, where observation can tell.
        remedy: what to do about it; the catalogue's if "".
    """

    name: str
    level: Level
    proof: str
    case: str = ""
    place: SourceLine | None = None
    remedy: str = ""


@dataclass(frozen=True)
class Fact:
    """Something the target does, right or wrong: "scale" is "0.5 = 1/√head_dim"."""

    name: str
    value: str
