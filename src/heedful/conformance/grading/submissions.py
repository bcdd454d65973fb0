"""The submissions of a class: the files and folders in a folder."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from heedful.errors import ArgumentError
from heedful.reading import read_file

MAX_SOURCE = 1 << 20  # bytes


@dataclass(frozen=True)
class Submission:
    """A submission.

    Attributes:
        path: A .py file, or a folder with .py files in it.
    """

    path: Path

    @property
    def name(self) -> str:
        """The name that the table shows."""
        return f"{self.path.name}/" if self.path.is_dir() else self.path.name

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """Yield a folder that contains a copy of this submission alone, which no other one can import or damage."""
        with TemporaryDirectory(prefix="heedful-", ignore_cleanup_errors=True) as folder:
            copy = Path(folder, self.path.name)
            try:
                if self.path.is_dir():
                    ignored = shutil.ignore_patterns(".*", "__pycache__")
                    shutil.copytree(self.path, copy, symlinks=True, ignore=ignored)
                else:
                    copy.write_bytes(read_file(self.path, MAX_SOURCE))
            except (OSError, shutil.Error) as error:
                raise self._unusable(f"{getattr(error, 'strerror', None) or error}") from error
            yield Path(folder).resolve()

    def target(self, folder: Path, entry: str) -> str:
        """Return the target to check in a copy: the file with the class or function called `entry`.

        Args:
            folder: The folder that contains the copy.
            entry: The name of the class or function.

        Raises:
            ArgumentError: No file of the submission defines it, or several files do that are equally near to the top.
        """
        copy = folder / self.path.name
        if not copy.is_dir():
            return f"{copy}:{entry}"
        files = sorted(copy.rglob("*.py"), key=lambda file: (len(file.parts), file))
        found = [file for file in files if _defines(file, entry)]
        found = [file for file in found if len(file.parts) == len(found[0].parts)]
        if len(found) == 1:
            return f"{found[0]}:{entry}"
        names = " and ".join(str(file.relative_to(copy)) for file in found)
        raise self._unusable(f"it in {names}" if found else "none that does")

    def _unusable(self, received: str) -> ArgumentError:
        return ArgumentError(
            self.name,
            expected="one file that can be read and defines the class or function",
            received=received,
            remedy="Name it as --entry says, in one file.",
        )


def find_submissions(folder: Path) -> list[Submission]:
    """Return the submissions in a folder by name: every .py file, and every folder; hidden ones are skipped.

    Raises:
        ArgumentError: The folder cannot be read, or contains no submission.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__")))
    except OSError as error:
        raise _empty(folder, f"{folder} ({error.strerror or error})") from error
    found = [Submission(path) for path in paths if path.suffix == ".py" or path.is_dir()]
    if not found:
        raise _empty(folder, f"{folder}, which has none")
    return found


def _empty(folder: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "DIR",
        expected="a folder of submissions: .py files, or folders with .py files",
        received=received,
        remedy="Name the folder that holds them.",
    )


def _defines(file: Path, entry: str) -> bool:
    """Check whether a file defines a class or function, or assigns the name; its code is not run."""
    try:
        tree = ast.parse(read_file(file, MAX_SOURCE))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    name = entry.partition(".")[0]
    return any(
        getattr(node, "name", None) == name
        or (isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets))
        for node in tree.body
    )
