"""Books as one sequence of tokens on disk.

Each book is cut at a line break near its end: what comes after is for validation. So validation text is of the same
kind as what is trained on, every book counts, one book is enough, and no window, nor the tokenizer's training, sees
both sides. A document is one side of one book.

The tokens of a side are `end_of_text` d₁ `end_of_text` d₂ … `end_of_text`: each `end_of_text` is predicted as the end
of the document before it, and read as the start of the one after it, to which it belongs. So every token but the very
first is a target, and where tokens attend to their own document alone, by `Documents(batch.documents)`, none is
predicted from another document.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from heedful.errors import ArgumentError
from heedful.gpt.tokenizer import Tokenizer
from heedful.writing import reserved

TRAINING_SHARE = 0.95  # of each book's characters
INDEX, TOKENS = "corpus.json", "tokens.npy"


@dataclass(frozen=True)
class Book:
    """A name and a text."""

    name: str
    text: str

    @property
    def training(self) -> str:
        return self.text[: self._cut]

    @property
    def validation(self) -> str:
        return self.text[self._cut :]

    @property
    def _cut(self) -> int:
        share = int(len(self.text) * TRAINING_SHARE)
        return self.text.rfind("\n", share - share // 20, share) + 1 or share


def sonnets() -> Book:
    """Shakespeare's sonnets, which come with the package: what is trained on where no book is named."""
    file = resources.files("heedful.gpt") / "sonnets.txt"
    return Book("sonnets", file.read_text(encoding="utf-8"))


def read_books(paths: Iterable[str | Path]) -> list[Book]:
    """Read plain-text books.

    Args:
        paths: UTF-8 files; a folder means all files of its own that end in .txt, in the order of their names.

    Raises:
        ArgumentError: a path that is missing, unreadable or named twice; a folder without .txt files; a file that is
            empty or not UTF-8; or no path at all.
    """
    files = [file for path in paths for file in _files_of(Path(path))]
    if not files:
        raise _no_book("no book", "Name at least one.")
    read = set()
    for file in files:
        if file.resolve() in read:
            raise _no_book(f"{file} twice", "Name it once, by itself or by its folder.")
        read.add(file.resolve())
    return [Book(file.stem, _read(file)) for file in files]


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.txt"))
    if not found:
        raise _no_book(f"no .txt file in the folder {path}", "Name a folder of .txt files.")
    return found


def _read(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise _no_book(f"{error.strerror}: {path}", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise _no_book(
            f"byte {error.object[error.start]:#04x} at offset {error.start} of {path}, which is no UTF-8",
            f"Convert it: iconv -f ISO-8859-1 -t UTF-8 {path}, with the encoding that it is in.",
        ) from error
    if not text.strip():
        raise _no_book(f"an empty file: {path}", "Leave it out.")
    return text.replace("\r\n", "\n")


def _no_book(received: str, remedy: str) -> ArgumentError:
    return ArgumentError(
        "BOOK", expected="UTF-8 text files that are not empty", received=received, remedy=remedy
    )


@dataclass(frozen=True)
class Split:
    """One side of the corpus.

    Attributes:
        tokens: (N,), uint16 or uint32, mapped from disk.
        starts: where each document starts among them, at its `end_of_text`.
        names: the documents' names.
    """

    tokens: np.ndarray
    starts: tuple[int, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)


class Corpus:
    """Books as tokens on disk: `train` and `validation`, each a `Split`."""

    def __init__(self, train: Split, validation: Split) -> None:
        self.train, self.validation = train, validation

    @classmethod
    def build(cls, books: Sequence[Book], tokenizer: Tokenizer, folder: str | Path) -> "Corpus":
        """Write the books' tokens into an existing folder; those of the same books and tokenizer are used again.

        Raises:
            ArgumentError: the tokenizer has no end of text, the books are too short to have two sides, or the folder
                cannot be written (what was there stays).
        """
        if tokenizer.end_of_text is None:
            raise ArgumentError(
                "tokenizer",
                expected="one with an end_of_text, which stands between books",
                received="one without",
                remedy='Name its eos_token in tokenizer_config.json, or take the tokenizer "bpe".',
            )
        folder = Path(folder)
        fingerprint = _fingerprint(books, tokenizer)
        if (folder / INDEX).is_file() and _read_index(folder).get("fingerprint") == fingerprint:
            return cls.load(folder)

        sides = {
            "train": _tokenized([(book.name, book.training) for book in books], tokenizer),
            "validation": _tokenized([(book.name, book.validation) for book in books], tokenizer),
        }
        index = {"fingerprint": fingerprint} | {
            side: {"length": len(split), "starts": split.starts, "names": split.names}
            for side, split in sides.items()
        }
        _write(folder, np.concatenate([split.tokens for split in sides.values()]), index)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | Path) -> "Corpus":
        """Map the corpus that was built into a folder.

        Raises:
            ArgumentError: there is none, or it is damaged.
        """
        folder = Path(folder)
        index = _read_index(folder)
        try:
            tokens = np.load(folder / TOKENS, mmap_mode="r", allow_pickle=False)
            train, validation = (
                (side["length"], tuple(side["starts"]), tuple(side["names"]))
                for side in (index["train"], index["validation"])
            )
        except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
            raise _damaged(folder, f"{type(error).__name__}: {error}") from error
        if len(tokens) != train[0] + validation[0]:
            raise _damaged(folder, f"{len(tokens)} tokens instead of {train[0] + validation[0]}")
        return cls(
            Split(tokens[: train[0]], *train[1:]), Split(tokens[train[0] :], *validation[1:])
        )


def _fingerprint(books: Sequence[Book], tokenizer: Tokenizer) -> str:
    told = [TRAINING_SHARE, tokenizer.fingerprint, *((book.name, book.text) for book in books)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _tokenized(named_texts: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Split:
    """The tokens of one side; a text that a short book left empty is no document."""
    named_texts = [(name, text) for name, text in named_texts if text]
    if not named_texts:
        raise _no_book("books of a character or two", "Add longer ones.")
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    end = tokenizer.end_of_text
    documents = [np.array([end, *tokenizer.encode(text)], dtype) for _, text in named_texts]
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    return Split(
        np.concatenate([*documents, np.array([end], dtype)]),
        tuple(starts.tolist()),
        tuple(name for name, _ in named_texts),
    )


def _write(folder: Path, tokens: np.ndarray, index: dict) -> None:
    content = io.BytesIO()
    np.save(content, tokens)
    with (
        reserved(folder / INDEX, "folder") as write_index,
        reserved(folder / TOKENS, "folder") as write_tokens,
    ):
        write_tokens(content.getvalue())
        write_index(json.dumps(index, indent=1) + "\n")
        # The tokens take their name before the index does: killed in between there is no corpus, never a mixed one.
        (folder / INDEX).unlink(missing_ok=True)


def _read_index(folder: Path) -> dict:
    try:
        index = json.loads((folder / INDEX).read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from error
    return index if isinstance(index, dict) else {}


def _damaged(folder: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "corpus",
        expected=f"a folder with a corpus: {INDEX} and {TOKENS}, as they were written",
        received=f"{received} ({folder})",
        remedy=f"Remove both from {folder}, and build the corpus again from its books.",
    )
