"""Files and folders that appear whole or not at all."""

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from heedful.errors import ArgumentError


@contextmanager
def reserved(path: Path, option: str) -> Iterator[Callable[[str | bytes], None]]:
    """Find out now whether a file can be written, and hand over what writes it at the end.

    What is written goes to a temporary file beside it, which takes its name once the block is done without an error;
    otherwise, Ctrl-C included, nothing is left and what was there before stays.

    Args:
        path: the file.
        option: the command-line option that named it, for the error.

    Raises:
        ArgumentError: the file cannot be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise _unwritable(path, option, "something that is no regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise _unwritable(path, option, "a file that is read-only")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise _unwritable(path, option, f"{error.strerror or error}") from error
    temporary = Path(name)
    try:
        os.close(handle)
        yield functools.partial(_write, path, option, temporary)
        temporary.chmod(0o666 & ~_umask())  # mkstemp's is for the owner alone
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, option: str) -> Iterator[Path]:
    """A temporary folder to fill; it takes its name once the block is done without an error, else it is removed.

    Args:
        path: the folder; it must not exist, or be empty.
        option: the command-line option that named it, for the error.

    Raises:
        ArgumentError: the folder exists, or cannot be made.
    """
    target = path.resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ArgumentError(
            option,
            expected="a folder that does not exist yet, or is empty",
            received=f"{path}, which is neither",
            remedy=f"Name another with {option}; nothing was overwritten.",
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _unwritable(path, option, f"{error.strerror or error}") from error
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())  # mkdtemp's is for the owner alone
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(path: Path, option: str, temporary: Path, content: str | bytes) -> None:
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:  # a full disk
        raise _unwritable(path, option, f"{error.strerror or error}") from error


def _umask() -> int:
    """The process's; there is no way to read it but to set it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(path: Path, option: str, received: str) -> ArgumentError:
    return ArgumentError(
        option,
        expected="the name of a file that can be written",
        received=f"{received} ({path})",
        remedy=f"Name another with {option}.",
    )
