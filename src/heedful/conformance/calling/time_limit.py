"""How long a target may run."""

from __future__ import annotations

import sys
import threading
from time import perf_counter  # bound here, because a target may replace it

if sys.platform == "linux":
    from time import clock_gettime, pthread_getcpuclockid

PATIENCE = 3
"""How many times the limit a run may take on the clock, where other processes have the processor or it sleeps."""


class TimeLimit:
    """Seconds of processor time from now on in the present thread, and a multiple of them on the clock.

    So a busy machine does not end a run that would finish in time on an idle one. Where a system does not tell the
    processor time of a thread, the clock alone counts.

    Args:
        seconds: The limit.

    Examples:
        >>> 59 < TimeLimit(60).left() <= 60
        True
    """

    def __init__(self, seconds: float) -> None:
        if sys.platform == "linux":
            clock = pthread_getcpuclockid(threading.get_ident())
            self._counted, self._patience = lambda: clock_gettime(clock), PATIENCE
        else:
            self._counted, self._patience = perf_counter, 1
        self._seconds: float = seconds
        self._counted_before: float = self._counted()
        self._before: float = perf_counter()

    def left(self) -> float:
        """Return the seconds until the limit is reached at the earliest; negative afterwards. Any thread may ask."""
        counted = self._counted() - self._counted_before
        passed = perf_counter() - self._before
        return min(self._seconds - counted, self._patience * self._seconds - passed)

    def restart(self, seconds: float) -> None:
        """Let so many seconds pass from now on, in the same thread. Any thread may ask for that."""
        self._seconds = seconds
        self._counted_before, self._before = self._counted(), perf_counter()
