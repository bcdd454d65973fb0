"""The conditions under which all cases of a run are measured."""

from __future__ import annotations

from dataclasses import dataclass

from heedful.timing import Budget, TimedRun


@dataclass(frozen=True)
class BenchConditions:
    """The conditions of a run.

    Attributes:
        peers: The names of the peers to compare with. Baselines are timed in any case.
        budget: How long each case is timed.
        probes: A probe of each peak of the machine.
        peaks: The highest value that each probe measured before the first case, in units per second.
        quick: Whether the workloads are made small.
    """

    peers: tuple[str, ...]
    budget: Budget
    probes: dict[str, TimedRun]
    peaks: dict[str, float]
    quick: bool
