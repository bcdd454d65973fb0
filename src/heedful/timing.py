"""Runs that take turns, and what is said of their times: medians, and ratios with their spread."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

LEAST_TURN = (
    0.002  # seconds; what is quicker runs several times in a turn, beyond the clock's grain
)
MOST_TURNS = 200

Timed = Callable[[int], float]  # so many runs in a row: seconds of one of them


@dataclass(frozen=True)
class Budget:
    """How long to measure a case.

    Attributes:
        seconds: after so many no turn begins,
        least_turns: unless there were fewer.
    """

    seconds: float
    least_turns: int


FULL = Budget(seconds=3.0, least_turns=5)
QUICK = Budget(seconds=0.02, least_turns=3)


@dataclass(frozen=True)
class Spread:
    """A median between its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: list[float]) -> Spread:
        low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Times:
    """Seconds of one run of each contender, turn by turn: those of one turn stand at the same place."""

    seconds: dict[str, list[float]]

    @property
    def turns(self) -> int:
        return min(map(len, self.seconds.values()))

    def spread(self, name: str) -> Spread:
        return Spread.of(self.seconds[name])

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, other: str, ours: str) -> Spread:
        """How many times as long as ours the other takes: of the medians, between the quartiles of single turns."""
        turns = [
            theirs / mine
            for theirs, mine in zip(self.seconds[other], self.seconds[ours], strict=True)
        ]
        spread = Spread.of(turns)
        return Spread(self.median(other) / self.median(ours), spread.low, spread.high)


def take_turns(contenders: Mapping[str, Timed], budget: Budget) -> Times:
    """Time all contenders, A B, B A, A B, …, so that whatever else the machine does hits all alike.

    Args:
        contenders: each has run at least once before.
        budget: how long.
    """
    repeats = {name: _repeats(timed) for name, timed in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + budget.seconds
    for turn in range(MOST_TURNS):
        if turn >= budget.least_turns and time.perf_counter() > end:
            break
        order = list(contenders) if turn % 2 == 0 else list(contenders)[::-1]
        for name in order:
            seconds[name].append(contenders[name](repeats[name]))
    return Times(seconds)


def _repeats(timed: Timed) -> int:
    """How many runs fill a turn."""
    return max(1, math.ceil(LEAST_TURN / max(timed(1), 1e-6)))


def time_runs(run: Callable[[], object], repeats: int) -> float:
    """Seconds of one of so many runs in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats
