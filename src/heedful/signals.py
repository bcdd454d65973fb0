"""Signals that end a program: inside a block they end it as an error does, so that it leaves nothing behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING: tuple[signal.Signals, ...] = tuple(
    getattr(signal, it) for it in ("SIGTERM", "SIGHUP") if hasattr(signal, it)
)
"""The signals by which a user, a shell or a closed terminal ends a program."""


@contextmanager
def raising_at_signals() -> Iterator[None]:
    """Raise SystemExit inside the block where a signal would end this process at once, so that the block cleans up.

    Only the main thread can handle signals. What nohup ignores and what the caller's own handler catches is left alone.
    """

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deadly = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in deadly:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in deadly:
            signal.signal(number, signal.SIG_DFL)
