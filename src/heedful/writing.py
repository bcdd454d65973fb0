"""Atomic writing: files and folders that appear complete or not at all."""

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from heedful.errors import ArgumentError
from heedful.signals import raising_at_signals


@contextmanager
def reserved(path: Path, option: str) -> Iterator[Callable[[str | bytes], None]]:
    """Check that a file can be written, and yield the function that writes its content.

    The content goes to a temporary file in the same folder, which is renamed when the block ends without an error.
    After an error, Ctrl-C or SIGTERM, the temporary file is removed and an existing file stays as it was. A symbolic
    link is refused, so that nothing is written to a place that was not named. The content is on the disk before the
    file has its name, so that a power failure leaves either the old content or the new one.

    Args:
        path: the file.
        option: the command-line option that named it, for the error.

    Yields:
        A function that writes text or bytes.

    Raises:
        ArgumentError: the file cannot be written.
    """
    with raising_at_signals(), _temporary(path, option) as temporary:
        yield functools.partial(_write, path, option, temporary)


@contextmanager
def reserved_file(path: Path, option: str) -> Iterator[BinaryIO]:
    """Check that a file can be written, and yield it open for writing, for content that is not in memory at once.

    Everything else is as in `reserved`.

    Args:
        path: the file.
        option: the command-line option that named it, for the error.

    Yields:
        The open file.

    Raises:
        ArgumentError: the file cannot be written.
    """
    with raising_at_signals(), _temporary(path, option) as temporary:
        try:
            with temporary.open("wb") as file:
                yield file
        except OSError as error:  # for example, the disk is full
            raise _unwritable(path, option, f"{error.strerror or error}") from error


@contextmanager
def new_folder(path: Path, option: str) -> Iterator[Path]:
    """Yield a temporary folder to fill. It is renamed when the block ends without an error, and else removed.

    Args:
        path: the folder, which must not exist or must be empty.
        option: the command-line option that named it, for the error.

    Yields:
        The temporary folder.

    Raises:
        ArgumentError: the folder exists and is not empty, or cannot be created; at the end of the block also if
            another process has created and filled it meanwhile.
    """
    target = path.resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise _taken(path, option, f"{path}, which is neither")
    with raising_at_signals():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        except OSError as error:
            raise _unwritable(path, option, f"{error.strerror or error}") from error
        try:
            yield temporary
            _synchronize_folder(temporary)
            temporary.chmod(0o777 & ~_umask())  # mkdtemp grants access to the owner only
            try:
                temporary.rename(target)
            except OSError as error:  # for example, another process has filled the folder
                received = f"{path}, which has been created meanwhile: {error.strerror or error}"
                raise _taken(path, option, received) from error
            _synchronize_folder(target.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _temporary(path: Path, option: str) -> Iterator[Path]:
    """Yield a temporary file, which takes the place of the file when the block ends without an error."""
    if path.is_symlink():
        raise _unwritable(path, option, f"a symbolic link to {path.readlink()}")
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise _unwritable(path, option, "something that is not a regular file")
    if target.exists() and not os.access(target, os.W_OK):
        raise _unwritable(path, option, "a read-only file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise _unwritable(path, option, f"{error.strerror or error}") from error
    temporary = Path(name)
    try:
        os.close(handle)
        yield temporary
        try:
            _synchronize(temporary)
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
            temporary.chmod(mode)  # mkstemp grants access to the owner only
            temporary.replace(target)
        except OSError as error:  # for example, the target has become a folder
            raise _unwritable(path, option, f"{error.strerror or error}") from error
        _synchronize_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, option: str, temporary: Path, content: str | bytes) -> None:
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:  # for example, the disk is full
        raise _unwritable(path, option, f"{error.strerror or error}") from error


def _synchronize(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _synchronize_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, if it is readable and the file system offers that."""
    with suppress(OSError):
        _synchronize(folder)


def _umask() -> int:
    """Return the process's umask, which can be read only by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _taken(path: Path, option: str, received: str) -> ArgumentError:
    return ArgumentError(
        option,
        expected="a folder that does not exist yet, or is empty",
        received=received,
        remedy=f"Name another with {option}; nothing was overwritten.",
    )


def _unwritable(path: Path, option: str, received: str) -> ArgumentError:
    return ArgumentError(
        option,
        expected="the name of a file that can be written",
        received=f"{received} ({path})",
        remedy=f"Name another with {option}.",
    )
