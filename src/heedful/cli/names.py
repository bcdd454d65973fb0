"""The names that a shell completes, each with what it stands for."""

from collections.abc import Iterable


def rungs(incomplete: str) -> list[tuple[str, str]]:
    """Return the rungs of the tour whose names begin so."""
    from heedful.tour.titles import TITLES

    return _beginning(incomplete, TITLES.items())


def findings(incomplete: str) -> list[tuple[str, str]]:
    """Return the findings of a check whose names begin so."""
    from heedful.conformance.reporting.catalogue import CATALOGUE

    return _beginning(incomplete, ((name, entry.meaning) for name, entry in CATALOGUE.items()))


def exercises(incomplete: str) -> list[tuple[str, str]]:
    """Return the exercises whose names begin so. What the bug is would give them away."""
    from heedful.conformance.practising.exercise import exercises

    return _beginning(incomplete, ((name, "") for name in exercises()))


def _beginning(incomplete: str, entries: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, meaning) for name, meaning in entries if name.startswith(incomplete)]
