"""Held, missed, or not measured: what a case measured against what it must reach."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.bench.cases import MOST_ADDED, SMALL_SECONDS, Requirement

HOLDS, MISSED, WRONG, OPEN = "holds", "MISSED", "WRONG", "not measured"


@dataclass(frozen=True)
class Judgement:
    """A requirement and what came of it.

    Attributes:
        requirement: what was to be reached.
        required, measured: in words; measured is why not, where it was not.
        holds: None: not measured.
    """

    requirement: Requirement
    required: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        return {True: HOLDS, False: MISSED, None: OPEN}[self.holds]


def ratio(requirement: Requirement, measured: float | None, why: str = "") -> Judgement:
    """How many times as fast as a peer."""
    return _at_least(requirement, f"{requirement.bound:g} ×", measured, ".2f", " ×", why)


def share(requirement: Requirement, measured: float | None, why: str = "") -> Judgement:
    """The share of a peak."""
    return _at_least(
        requirement, f"{requirement.bound:.0%} of {requirement.against}", measured, ".0%", "", why
    )


def small(requirement: Requirement, sdpa_seconds: float, our_seconds: float) -> Judgement:
    """A small call: by its ratio where SDPA takes `SMALL_SECONDS` or more, else by what it adds."""
    if sdpa_seconds >= SMALL_SECONDS:
        return ratio(requirement, sdpa_seconds / our_seconds)
    added = our_seconds - sdpa_seconds
    return Judgement(
        requirement,
        f"≤ +{MOST_ADDED * 1e6:.0f} µs",
        f"{added * 1e6:+.1f} µs",
        added <= MOST_ADDED,
    )


def memory(requirement: Requirement, added: int) -> Judgement:
    """Bytes that one call adds."""
    return Judgement(
        requirement,
        f"≤ {requirement.bound / 2**20:.0f} MiB",
        f"{added / 2**20:.0f} MiB",
        added <= requirement.bound,
    )


def equal(requirement: Requirement, differing: list[str]) -> Judgement:
    """The results that differ on another number of threads."""
    return Judgement(
        requirement,
        "equal bits",
        f"{', '.join(differing)} differ" if differing else "equal bits",
        not differing,
    )


def unmeasured(requirement: Requirement, why: str) -> Judgement:
    """A requirement that nothing here can tell of."""
    return Judgement(requirement, "", why, None)


def _at_least(
    requirement: Requirement, bound: str, measured: float | None, form: str, unit: str, why: str
) -> Judgement:
    if measured is None:
        return Judgement(requirement, f"≥ {bound}", why, None)
    return Judgement(
        requirement, f"≥ {bound}", f"{measured:{form}}{unit}", measured >= requirement.bound
    )
