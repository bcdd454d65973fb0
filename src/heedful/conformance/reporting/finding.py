"""Findings and facts: what a check tells about a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from heedful.conformance.recording.source import SourceLine

Level = Literal["bug", "convention", "suspicious", "not-testable"]
LEVELS: tuple[Level, ...] = ("bug", "suspicious", "convention", "not-testable")
"""All levels, in the order in which reports print them."""
ANY_CALL = "any call"
"""The case of a finding that the source code alone proves."""


@dataclass(frozen=True)
class Finding:
    """Something wrong or remarkable about a target, with its proof.

    Attributes:
        name: The name of an entry of the catalogue, such as "scale-missing".
        level: "bug"; "suspicious" for what is wrong unless it is intended; "convention" for what is right in itself,
            but must be known to share weights; "not-testable" for what could not be decided.
        proof: A sentence that says what was done and what it showed.
        case: The smallest case that shows it: sizes, indices, numbers.
        place: The line of the target that causes it; None if it is unknown.
        remedy: How to fix it; "" if the remedy of the catalogue applies, or if nothing could be tested.

    Examples:
        >>> from heedful.conformance import Finding
        >>> Finding("scale-missing", "bug", "The logits equal query · key.").level
        'bug'
    """

    name: str
    level: Level
    proof: str
    case: str = ""
    place: SourceLine | None = None
    remedy: str = ""


@dataclass(frozen=True)
class Fact:
    """A property of a target, whether right or wrong.

    Attributes:
        name: The name of the property, such as "scale".
        value: Its value as text, such as "0.5 = 1/√head_dim".

    Examples:
        >>> from heedful.conformance import Fact
        >>> Fact("scale", "0.5 = 1/√head_dim").value
        '0.5 = 1/√head_dim'
    """

    name: str
    value: str
