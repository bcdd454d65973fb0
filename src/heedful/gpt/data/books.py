"""Books as plain text, and their division into a training and a validation part.

Each book is divided at a line break near its end; the text after it is for validation. So the validation text is
similar to the training text, every book counts, and one book is enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from heedful.errors import ArgumentError

TRAINING_SHARE = 0.95  # of each book's characters


@dataclass(frozen=True)
class Book:
    """A text with a name.

    Attributes:
        name: the name, which need not be unique.
        text: the whole text.

    Examples:
        >>> book = Book("numbers", "one\\ntwo\\n" * 20)
        >>> len(book.training), len(book.validation)
        (152, 8)
    """

    name: str
    text: str

    @property
    def training(self) -> str:
        """The text to train on."""
        return self.text[: self._division]

    @property
    def validation(self) -> str:
        """The text to validate on."""
        return self.text[self._division :]

    @property
    def size(self) -> int:
        """The number of bytes in UTF-8."""
        return len(self.text.encode())

    @property
    def digest(self) -> str:
        """The SHA-256 digest and the name, in the format of sha256sum."""
        return f"{hashlib.sha256(self.text.encode()).hexdigest()}  {self.name}"

    @property
    def _division(self) -> int:
        share = int(len(self.text) * TRAINING_SHARE)
        return self.text.rfind("\n", share - share // 20, share) + 1 or share


def sonnets() -> Book:
    """Return Shakespeare's sonnets, which come with the package.

    Examples:
        >>> sonnets().text[:11]
        'THE SONNETS'
    """
    file = resources.files("heedful.gpt.data") / "sonnets.txt"
    return Book("sonnets", file.read_text(encoding="utf-8"))


def read_books(paths: Iterable[str | Path]) -> list[Book]:
    """Read plain-text books.

    Args:
        paths: UTF-8 files; a folder stands for the files in it that end in .txt, in the order of their names.

    Returns:
        The books, each with its file's name without the suffix.

    Raises:
        ArgumentError: a path is missing, unreadable or named twice; a folder has no .txt file; a file is empty or is
            not UTF-8; or there is no path at all.
    """
    files = [file for path in paths for file in _files_in(Path(path))]
    if not files:
        raise no_book("no book", "Name at least one.")
    known = set()
    for file in files:
        if file.resolve() in known:
            raise no_book(f"{file} twice", "Name it once, by itself or by its folder.")
        known.add(file.resolve())
    return [Book(file.stem, _read_text(file)) for file in files]


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.txt"))
    if not files:
        raise no_book(f"no .txt file in the folder {path}", "Name a folder of .txt files.")
    return files


def _read_text(path: Path) -> str:
    try:
        text = str(path.read_bytes(), "utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise no_book(f"{error.strerror}: {path}", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise no_book(
            f"byte {error.object[error.start]:#04x} at offset {error.start} of {path}, which is not UTF-8",
            f"Convert the file from its encoding, for example: iconv -f ISO-8859-1 -t UTF-8 {path}",
        ) from error
    if not text.strip():
        raise no_book(f"an empty file: {path}", "Leave it out.")
    return text.replace("\r\n", "\n")


def no_book(received: str, remedy: str) -> ArgumentError:
    """Build the error for books that cannot be used."""
    return ArgumentError(
        "BOOK", expected="UTF-8 text files that are not empty", received=received, remedy=remedy
    )
