"""Timing of several contenders in turns, with medians, quartiles and ratios."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

# Faster runs are repeated within a turn, so that the resolution of the clock does not matter. A longer turn would keep
# data in caches in which a model does not find it.
MIN_TURN_SECONDS: float = 0.002

TimedRun: TypeAlias = Callable[[int], float]
"""Runs a contender the given number of times in a row and returns the mean seconds of one run."""


@dataclass(frozen=True)
class Budget:
    """The time and the number of turns for timing the contenders.

    Attributes:
        seconds: No turn begins after this time, except to reach `min_turns`.
        min_turns: The minimum number of turns.
        max_turns: The maximum number of turns.
    """

    seconds: float
    min_turns: int
    max_turns: int = 200


@dataclass(frozen=True)
class Spread:
    """A median with its lower and upper quartile.

    Attributes:
        median: The median.
        low: The lower quartile.
        high: The upper quartile.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: list[float]) -> Spread:
        """Return the spread of at least two numbers.

        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 5.0])
        Spread(median=3.0, low=2.0, high=4.0)
        """
        low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Times:
    """Measured times of several contenders.

    Attributes:
        seconds: For each contender, the seconds of one run in each turn, in the order of the turns.
    """

    seconds: dict[str, list[float]]

    @property
    def turns(self) -> int:
        """The number of turns."""
        return min(map(len, self.seconds.values()))

    def spread(self, name: str) -> Spread:
        """Return the spread of a contender's seconds."""
        return Spread.of(self.seconds[name])

    def median(self, name: str) -> float:
        """Return the median of a contender's seconds."""
        return statistics.median(self.seconds[name])

    def ratio(self, numerator: str, denominator: str) -> Spread:
        """Return the ratio of two contenders' medians, with the quartiles of the ratios of single turns.

        >>> times = Times({"slow": [2.0, 4.0, 6.0], "fast": [1.0, 2.0, 2.0]})
        >>> times.ratio("slow", "fast")
        Spread(median=2.0, low=2.0, high=2.5)
        """
        ratios = [
            dividend / divisor
            for dividend, divisor in zip(
                self.seconds[numerator], self.seconds[denominator], strict=True
            )
        ]
        spread = Spread.of(ratios)
        return Spread(self.median(numerator) / self.median(denominator), spread.low, spread.high)


def take_turns(contenders: Mapping[str, TimedRun], budget: Budget) -> Times:
    """Time all contenders in turns: A B, B A, A B, ….

    The turns spread every disturbance of the machine over all contenders.

    Args:
        contenders: The timed runs by name. Each must have run once before, so that no warm-up is timed.
        budget: How long to time them.

    Returns:
        The times of all turns.
    """
    repeats = {name: _repeats_per_turn(timed_run) for name, timed_run in contenders.items()}
    turns = list(iterate_turns(contenders, budget, repeats))
    return Times({name: [seconds[name] for seconds in turns] for name in contenders})


def iterate_turns(
    contenders: Mapping[str, TimedRun], budget: Budget, repeats: Mapping[str, int] | None = None
) -> Iterator[dict[str, float]]:
    """Yield the seconds of one run of each contender, turn by turn.

    The order of the contenders is reversed in every second turn.

    Args:
        contenders: The timed runs by name.
        budget: How long to time them.
        repeats: How often each contender runs in a turn. Default: once.
    """
    end = time.perf_counter() + budget.seconds
    for turn in range(budget.max_turns):
        if turn >= budget.min_turns and time.perf_counter() > end:
            return
        order = list(contenders) if turn % 2 == 0 else list(contenders)[::-1]
        yield {name: contenders[name](repeats[name] if repeats else 1) for name in order}


def time_runs(run: Callable[[], object], repeats: int) -> float:
    """Run a function `repeats` times in a row and return the mean seconds of one run."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def _repeats_per_turn(timed_run: TimedRun) -> int:
    """Return how many runs take at least `MIN_TURN_SECONDS`."""
    return max(1, math.ceil(MIN_TURN_SECONDS / max(timed_run(1), 1e-6)))
