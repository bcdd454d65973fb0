"""Where the time of a run goes, over all the processes that it takes."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Clock:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.spent.values())

    def add(self, spent: Mapping[str, float]) -> None:
        """Count what an earlier process had spent."""
        for purpose, seconds in spent.items():
            self.spent[purpose] += seconds

    @contextmanager
    def spending(self, purpose: str) -> Iterator[None]:
        """Count the time that the block takes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent[purpose] += time.perf_counter() - began
