"""Blocks of code that end when their time is up."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from functools import lru_cache
from os import getpid  # bound here, as the next one is, because a target may replace them
from time import sleep

from heedful.conformance.calling.time_limit import TimeLimit

PERIOD = 0.05
"""How many seconds pass between two looks at the blocks that run."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError at the block's next Python instruction once its time is up; works in any thread.

    A block that has no time at all is not entered.
    """
    limit = TimeLimit(seconds)
    if limit.left() <= 0:
        raise TimeoutError
    try:
        _watch_of(getpid()).begin(limit)
        yield
    finally:
        _watch_of(getpid()).end(limit)


class Watch:
    """A thread that looks at the blocks of all threads. It starts with the first block, and ends soon after the last.

    A check runs thousands of blocks. A thread for each would take more time than some of them do.
    """

    def __init__(self) -> None:
        self._threads: dict[TimeLimit, int] = {}
        self._lock = threading.Lock()
        self._runs = False

    def begin(self, limit: TimeLimit) -> None:
        """Watch the block of the present thread that has this limit."""
        with self._lock:
            if not self._runs:
                threading.Thread(target=self._look, daemon=True).start()
                self._runs = True
            self._threads[limit] = threading.get_ident()

    def end(self, limit: TimeLimit) -> None:
        """Watch this block no longer: after the call, no exception is raised in it."""
        with self._lock:
            self._threads.pop(limit, None)

    def _look(self) -> None:
        runs = True
        while runs:
            sleep(PERIOD)
            with self._lock:
                # One at a time, the innermost first: a thread keeps the last exception alone.
                for limit in reversed(self._threads):
                    if limit.left() <= 0:
                        _interrupt(self._threads.pop(limit))
                        break
                runs = self._runs = bool(self._threads)


def _interrupt(thread: int) -> None:
    """Raise TimeoutError in a thread at its next instruction."""
    error = ctypes.py_object(TimeoutError)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)


@lru_cache(maxsize=1)
def _watch_of(process: int) -> Watch:
    """Return what watches the blocks of a process. One that a target forks has no threads of this one."""
    return Watch()
