"""Books as plain text, and their division into a training and a validation part.

Each book is divided at a line break near its end; the text after it is for validation. So the validation text is
similar to the training text, every book counts, and one book is enough. Books are read piece by piece, so that their
size takes no memory.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import BinaryIO

from heedful.errors import ArgumentError
from heedful.reading import open_file

TRAINING_SHARE = 0.95  # of each book's characters
MAX_BOOK = 1 << 30  # bytes; the longest books have about 20 million
MAX_SAMPLE = 1 << 23  # bytes; more text would change few of a tokenizer's words
PIECE = 1 << 16  # characters; the memory of a tokenizer grows with the text that it gets at once
LAST_WORD_END = re.compile(r".*\S(?=[ \n])", re.DOTALL)


class Book:
    """A text with a name, in memory or in a file.

    Args:
        name: the name, which need not be unique.
        source: the text itself, or a file of it in UTF-8. A byte-order mark is left out, and line ends of Windows
            become line feeds.

    Attributes:
        name: the name.

    Raises:
        ArgumentError: the file cannot be read, is not UTF-8, is empty or is not a text, at any time that it is read.

    Examples:
        >>> book = Book("numbers", "one\\ntwo\\n" * 20)
        >>> len("".join(book.training())), "".join(book.validation())
        (152, 'one\\ntwo\\n')
    """

    def __init__(self, name: str, source: str | Path) -> None:
        self.name: str = name
        self._source = source

    def training(self) -> Iterator[str]:
        """Yield the text to train on, in pieces that tokenizers divide in the same way as the whole."""
        return _pieces(_between(self._blocks(), 0, self._division))

    def validation(self) -> Iterator[str]:
        """Yield the text to validate on, in pieces that tokenizers divide in the same way as the whole."""
        return _pieces(_between(self._blocks(), self._division, self._facts[0]))

    @property
    def size(self) -> int:
        """The number of bytes in UTF-8."""
        return self._facts[1]

    @property
    def digest(self) -> str:
        """The SHA-256 digest and the name, in the format of sha256sum."""
        return f"{self._facts[2]}  {self.name}"

    def _blocks(self) -> Iterator[str]:
        """Yield the text in blocks of any sizes."""
        if isinstance(self._source, Path):
            yield from _read_text(self._source)
        else:
            yield from (
                self._source[start : start + PIECE] for start in range(0, len(self._source), PIECE)
            )

    @cached_property
    def _facts(self) -> tuple[int, int, str]:
        """The number of characters, the number of bytes and the digest."""
        characters, size, digest = 0, 0, hashlib.sha256()
        for block in self._blocks():
            content = block.encode()
            characters, size = characters + len(block), size + len(content)
            digest.update(content)
        return characters, size, digest.hexdigest()

    @cached_property
    def _division(self) -> int:
        """The position of the first character for validation."""
        share = int(self._facts[0] * TRAINING_SHARE)
        start, last = share - share // 20, 0
        for block in _between(self._blocks(), start, share):
            last = start + block.rfind("\n") + 1 if "\n" in block else last
            start += len(block)
        return last or share


def sonnets() -> Book:
    """Return Shakespeare's sonnets, which come with the package.

    Examples:
        >>> next(sonnets().training())[:11]
        'THE SONNETS'
    """
    file = resources.files("heedful.gpt.data") / "sonnets.txt"
    return Book("sonnets", file.read_text(encoding="utf-8"))


def read_books(paths: Iterable[str | Path]) -> list[Book]:
    """Read plain-text books once, from beginning to end, and return them without their texts.

    Args:
        paths: UTF-8 files; a folder stands for the files in it that end in .txt, in the order of their names.

    Returns:
        The books, each with its file's name without the suffix.

    Raises:
        ArgumentError: a path is missing, unreadable, larger than 1 GiB or named twice; a folder has no .txt file; a
            file is empty, not UTF-8 or not a text; or there is no path at all.
    """
    files = [file for path in paths for file in _files_in(Path(path))]
    if not files:
        raise no_book("no book", "Name at least one.")
    known: set[tuple[int, int]] = set()
    for path in files:
        with _open(path) as file:
            status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) in known:
            raise no_book(f"{path} twice", "Name it once, by itself or by its folder.")
        known.add((status.st_dev, status.st_ino))
    books = [Book(file.stem, file) for file in files]
    for book, path in zip(books, files, strict=True):
        if not any(block.strip() for block in book._blocks()):
            raise no_book(f"an empty file: {path}", "Leave it out.")
        _ = book.size  # reads the rest
    return books


def sample_share(books: Iterable[Book]) -> float:
    """Return the share of the books' text that `training_sample` yields; 1 unless the books are long.

    Examples:
        >>> sample_share([Book("short", "To be or not to be.")])
        1.0
    """
    return min(1.0, MAX_SAMPLE / max(1, sum(book.size for book in books)))


def training_sample(books: Sequence[Book]) -> Iterator[str]:
    """Yield the training text of books for a tokenizer to be trained on.

    A trainer remembers every different word. So of books with more than 8 MiB in total, only pieces drawn at random
    with a fixed seed are yielded, of about 8 MiB.

    Args:
        books: the books.
    """
    share, dice = sample_share(books), random.Random(0)
    return (
        piece for book in books for piece in book.training() if share == 1 or dice.random() < share
    )


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.txt"))
    if not files:
        raise no_book(f"no .txt file in the folder {path}", "Name a folder of .txt files.")
    return files


def _open(path: Path) -> BinaryIO:
    try:
        return open_file(path, MAX_BOOK)
    except OSError as error:
        raise no_book(f"{error.strerror}: {path}", "Check the path.") from error


def _read_text(path: Path) -> Iterator[str]:
    """Yield the text of a file in blocks, without a byte-order mark and with line feeds as line ends."""
    held = ""  # a carriage return whose line feed may come with the next block
    with _open(path) as file:
        for number, block in enumerate(_decoded(file, path)):
            text = held + (block.removeprefix("\ufeff") if number == 0 else block)
            held = "\r" if text.endswith("\r") else ""
            yield text.removesuffix("\r").replace("\r\n", "\n")
    yield held


def _decoded(file: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the text of an open file in blocks.

    Raises:
        ArgumentError: the file is not UTF-8, or has a null character, as binary files have.
    """
    decoder, read = codecs.getincrementaldecoder("utf-8")(), 0
    block = b" "
    while block:
        begun = len(decoder.getstate()[0])  # bytes of a character that the last block has begun
        try:
            block = file.read(PIECE)
            text = decoder.decode(block, final=not block)
        except OSError as error:
            raise no_book(f"{error.strerror}: {path}", "Check the path.") from error
        except UnicodeDecodeError as error:
            byte, offset = error.object[error.start], read - begun + error.start
            raise no_book(
                f"byte {byte:#04x} at offset {offset} of {path}, which is not UTF-8",
                f"Convert the file from its encoding, for example: iconv -f ISO-8859-1 -t UTF-8 {path}",
            ) from error
        if "\0" in text:
            raise no_book(f"null characters in {path}, which is not a text", "Leave it out.")
        read += len(block)
        yield text


def _between(blocks: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """Yield the characters from `start` to `stop` of a text in blocks."""
    position = 0
    for block in blocks:
        if position >= stop:
            return
        yield block[max(start - position, 0) : stop - position]
        position += len(block)


def _pieces(blocks: Iterable[str]) -> Iterator[str]:
    """Yield the same text in pieces that are not empty and end where a word ends before a space or a line break.

    GPT-2's regular expression, which all our tokenizers divide a text by, always divides it there. So the tokens of the
    pieces are those of the whole text. Only a text without any such place is divided elsewhere.
    """
    rest = ""
    for block in blocks:
        rest += block
        if len(rest) >= PIECE:
            word_end = LAST_WORD_END.match(rest)
            end = word_end.end() if word_end else len(rest)
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def no_book(received: str, remedy: str) -> ArgumentError:
    """Build the error for books that cannot be used."""
    return ArgumentError(
        "BOOK", expected="UTF-8 text files that are not empty", received=received, remedy=remedy
    )
