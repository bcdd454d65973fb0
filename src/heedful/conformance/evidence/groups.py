"""Targets whose first axis holds several entries of each sequence, as the frames of a video."""

from __future__ import annotations

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.subject import Subject


def taken_together(subject: Subject, B: int, T: int) -> int:
    """Return how many of the B entries of an example a target takes at least: 1, or a divisor of B that is less than B.

    1 is returned, too, if it takes no fewer than B.
    """
    if not subject.convention.from_example:
        return 1
    divisors = (n for n in range(1, B // 2 + 1) if B % n == 0)
    return next((n for n in divisors if _takes(subject, n, T)), 1)


def _takes(subject: Subject, B: int, T: int) -> bool:
    return not isinstance(attempt(lambda: subject.run(subject.draw(B, T))), Exception)
