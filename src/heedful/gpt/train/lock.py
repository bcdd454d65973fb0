"""A lock on the folder of a run, so that only one process at a time continues it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.errors import ArgumentError

LOCK = "run.lock"  # stays in the folder; it has the id of the process that locked it last


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder inside the block.

    The system releases the lock when the process ends, even if it is killed. A system without `fcntl` has no lock.

    Args:
        folder: the folder of a run.

    Raises:
        ArgumentError: another process holds the lock, or the lock's file cannot be written.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(folder / LOCK, flags, 0o666)
    except OSError as error:
        raise _unusable(folder, f"{error.strerror}: {folder / LOCK}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _unusable(folder, f"something that is not a regular file: {folder / LOCK}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 20).decode(errors="replace").strip()
            raise _taken(folder, holder) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _taken(folder: Path, holder: str) -> ArgumentError:
    return ArgumentError(
        "--out",
        expected="a run that no other process is training",
        received=f"{folder}, which process {holder} is training",
        remedy="Wait until it ends, or end it with Ctrl-C; it saves the run.",
    )


def _unusable(folder: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "--out",
        expected=f"a folder whose {LOCK} can be written",
        received=received,
        remedy=f"Remove {LOCK} from {folder}, or copy the run to a folder that is yours.",
    )
