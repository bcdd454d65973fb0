"""Reading of files that others wrote: regular files only, and not more of them than is expected.

A FIFO or a device in the place of a file would block or never end. All errors are `OSError` or `ValueError`, as those
of the standard library.
"""

import errno
import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any, BinaryIO

BLOCK = 1 << 16  # bytes; to read them all at once would take the memory for `at_most` bytes
MAX_JSON: int = 1 << 24  # bytes; the largest configurations of transformers take a tenth of it
MAX_TOML: int = 1 << 20  # bytes


def open_file(path: Path, at_most: int) -> BinaryIO:
    """Open a regular file of a limited size for reading.

    Args:
        path: The file.
        at_most: The maximum number of bytes.

    Returns:
        The open file.

    Raises:
        OSError: The file is missing, unreadable or too large, or is not a regular file.
    """
    try:
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller closes it
    except ValueError as error:  # a name with a null byte or half a surrogate pair
        raise OSError(errno.EINVAL, "No file can have this name", str(path)) from error
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    if status.st_size > at_most:
        file.close()
        reason = f"A file of {status.st_size:,} bytes, where {at_most:,} are the limit"
        raise OSError(errno.EFBIG, reason, str(path))
    return file


def read_file(path: Path, at_most: int) -> bytes:
    """Return the content of a regular file of a limited size.

    Args:
        path: The file.
        at_most: The maximum number of bytes.

    Raises:
        OSError: The file is missing, unreadable or too large, or is not a regular file.
    """
    content = bytearray()
    with open_file(path, at_most) as file:
        while block := file.read(BLOCK):
            content += block
            if len(content) > at_most:  # files of the system have more bytes than their size says
                raise OSError(errno.EFBIG, f"A file of more than {at_most:,} bytes", str(path))
    return bytes(content)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        path: The file.

    Raises:
        OSError: The file is missing, unreadable or larger than 16 MiB, or is not a regular file.
        ValueError: The file does not contain a JSON object.
    """
    try:
        fields = json.loads(read_file(path, MAX_JSON))
    except RecursionError as error:
        raise ValueError("text that is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"text that is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"a JSON {type(fields).__name__}")  # noqa: TRY004 - the file is wrong
    return fields


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables in a TOML file.

    Args:
        path: The file.

    Raises:
        OSError: The file is missing, unreadable or larger than 1 MiB, or is not a regular file.
        ValueError: The file does not contain TOML in UTF-8.
    """
    try:
        return tomllib.loads(str(read_file(path, MAX_TOML), "utf-8"))
    except RecursionError as error:
        raise ValueError("text that is nested too deeply") from error


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file at once; opening a FIFO would wait for its writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
