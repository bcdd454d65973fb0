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
SECONDS_TO_END = 1.0
"""How long an interrupted block may take to end, before it is interrupted again."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError at the block's next Python instruction once its time is up; works in any thread.

    It is raised again while the block goes on, because a block within this one may take the exception for its own.
    A block that has no time at all is not entered.
    """
    block = Block(seconds)
    if block.is_late():
        raise TimeoutError
    try:
        _watch_of(getpid()).begin(block)
        yield
    finally:
        try:
            _watch_of(getpid()).end(block)
        finally:
            _watch_of(getpid()).end(block)  # an exception may have been raised in the first call


class Block:
    """A block of the present thread, and how many seconds it has."""

    def __init__(self, seconds: float) -> None:
        self._limit = TimeLimit(seconds)
        self.thread: int = threading.get_ident()
        self.is_interrupted: bool = False

    def is_late(self) -> bool:
        """Check whether its time is up, or after an interrupt the time to end."""
        return self._limit.left() <= 0

    def interrupt(self) -> None:
        """Raise TimeoutError in the block's thread at its next instruction."""
        error = ctypes.py_object(TimeoutError)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), error)
        self.is_interrupted = True
        self._limit.restart(SECONDS_TO_END)


class Watch:
    """A thread that looks at the blocks of all threads. It starts with the first block, and ends soon after the last.

    A check runs thousands of blocks. A thread for each would take more time than some of them do.
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._lock = threading.Lock()
        self._runs = False

    def begin(self, block: Block) -> None:
        """Watch a block of the present thread."""
        with self._lock:
            if not self._runs:
                threading.Thread(target=self._look, daemon=True).start()
                self._runs = True
            self._blocks.append(block)

    def end(self, block: Block) -> None:
        """Watch this block no longer, nor those in it: after the call, no exception is raised for them."""
        with self._lock:
            begun = self._blocks.index(block) if block in self._blocks else len(self._blocks)
            others = (it for it in self._blocks[begun:] if it.thread != block.thread)
            self._blocks[begun:] = others

    def _look(self) -> None:
        runs = True
        while runs:
            sleep(PERIOD)
            with self._lock:
                self._interrupt_late_blocks()
                runs = self._runs = bool(self._blocks)

    def _interrupt_late_blocks(self) -> None:
        """Interrupt the innermost late block of each thread, unless one in it has yet to end.

        A thread keeps the last exception alone: one for an outer block would replace that of an inner one.
        """
        ending: set[int] = set()
        for block in reversed(self._blocks):
            if block.thread not in ending and block.is_late():
                block.interrupt()
            if block.is_interrupted:
                ending.add(block.thread)


@lru_cache(maxsize=1)
def _watch_of(process: int) -> Watch:
    """Return what watches the blocks of a process. One that a target forks has no threads of this one."""
    return Watch()
