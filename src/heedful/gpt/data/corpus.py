"""The tokens of books as one sequence on disk, divided into a training and a validation split.

A document is the training or the validation text of one book. The tokens of a split are
`end_of_text` d₁ `end_of_text` d₂ … `end_of_text`: each `end_of_text` is predicted as the end of the document before it,
and read as the start of the document after it, to which it belongs. So every token but the first is a target. Where
tokens attend to their own document only, by `Documents(batch.documents)`, none is predicted from another document.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from heedful.errors import ArgumentError
from heedful.gpt.data.books import TRAINING_SHARE, Book, no_book
from heedful.gpt.tokenizer import Tokenizer
from heedful.reading import open_file, read_json
from heedful.writing import reserved, reserved_file

INDEX, TOKENS = "corpus.json", "tokens.npy"


@dataclass(frozen=True)
class Split:
    """The training or the validation part of a corpus.

    Attributes:
        tokens: (N,), uint16 or uint32, mapped from disk.
        starts: the position of each document's first token, which is `end_of_text`.
        names: the documents' names.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    starts: tuple[int, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.tokens)


class Corpus:
    """The tokens of books on disk.

    Attributes:
        train: the tokens to train on.
        validation: the tokens to validate on.
    """

    def __init__(self, train: Split, validation: Split) -> None:
        self.train: Split = train
        self.validation: Split = validation

    @classmethod
    def build(cls, books: Sequence[Book], tokenizer: Tokenizer, folder: str | Path) -> Corpus:
        """Write the tokens of books into a folder, unless it holds those of the same books and tokenizer already.

        Args:
            books: the books, whose order matters.
            tokenizer: has an `end_of_text`.
            folder: an existing folder.

        Returns:
            The corpus, mapped from the folder.

        Raises:
            ArgumentError: the tokenizer has no `end_of_text`, the books are too short for two splits, or the folder
                cannot be written; a corpus that was there before stays.
        """
        if tokenizer.end_of_text is None:
            raise ArgumentError(
                "tokenizer",
                expected="a tokenizer with an end_of_text, which separates books",
                received="one without",
                remedy='Name its eos_token in tokenizer_config.json, or take the tokenizer "bpe".',
            )
        folder = Path(folder)
        fingerprint = _fingerprint(books, tokenizer)
        if (folder / INDEX).is_file() and _read_index(folder).get("fingerprint") == fingerprint:
            return cls.load(folder)

        _write(folder, fingerprint, books, tokenizer)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Corpus:
        """Map the corpus that `build` wrote into a folder.

        Raises:
            ArgumentError: there is no corpus, or it is damaged.
        """
        folder = Path(folder)
        index = _read_index(folder)
        try:
            open_file(folder / TOKENS, sys.maxsize).close()
            tokens = np.load(folder / TOKENS, mmap_mode="r", allow_pickle=False)
            train, validation = (
                (int(split["length"]), tuple(split["starts"]), tuple(split["names"]))
                for split in (index["train"], index["validation"])
            )
        except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
            raise _damaged(folder, f"{type(error).__name__}: {error}") from error
        if tokens.dtype not in (np.uint16, np.uint32) or tokens.ndim != 1:
            raise _damaged(folder, f"an array of {tokens.dtype} and shape {tokens.shape}")
        if len(tokens) != train[0] + validation[0]:
            raise _damaged(folder, f"{len(tokens)} tokens instead of {train[0] + validation[0]}")
        return cls(
            Split(tokens[: train[0]], *train[1:]), Split(tokens[train[0] :], *validation[1:])
        )


def _fingerprint(books: Sequence[Book], tokenizer: Tokenizer) -> str:
    parts = [TRAINING_SHARE, tokenizer.fingerprint, *(book.digest for book in books)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _write(folder: Path, fingerprint: str, books: Sequence[Book], tokenizer: Tokenizer) -> None:
    """Write the tokens of books and their index; a piece of a book at a time is in memory."""
    with (
        reserved(folder / INDEX, "folder") as write_index,
        reserved_file(folder / TOKENS, "folder") as file,
    ):
        dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
        _write_header(file, dtype, 0)
        train = _write_split(
            file, dtype, [(book.name, book.training()) for book in books], tokenizer
        )
        validation = _write_split(
            file, dtype, [(book.name, book.validation()) for book in books], tokenizer
        )
        file.seek(0)
        _write_header(file, dtype, train["length"] + validation["length"])
        index = {"fingerprint": fingerprint, "train": train, "validation": validation}
        write_index(json.dumps(index, indent=1) + "\n")
        # The files take their final names when the blocks end: first the tokens, then the index. Without the old index,
        # a process killed in between leaves no corpus at all, instead of new tokens with an old index.
        (folder / INDEX).unlink(missing_ok=True)


def _write_header(file: BinaryIO, dtype: np.dtype[Any], length: int) -> None:
    """Write the header of an .npy file; numpy leaves room in it, so that its size does not depend on the length."""
    descr = np.lib.format.dtype_to_descr(dtype)
    fields = {"descr": descr, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, fields)


def _write_split(
    file: BinaryIO,
    dtype: np.dtype[Any],
    named_texts: Iterable[tuple[str, Iterable[str]]],
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Append the tokens of texts to a file, and return their number, the documents' starts and their names.

    Empty texts, as those of very short books are, are no documents.
    """
    end = np.array([tokenizer.end_of_text], dtype).tobytes()
    length, starts, names = 0, [], []
    for name, pieces in named_texts:
        for number, piece in enumerate(pieces):
            if number == 0:
                starts.append(length)
                names.append(name)
                length += file.write(end) // dtype.itemsize
            ids = np.array(tokenizer.encode(piece), dtype)
            length += file.write(ids.tobytes()) // dtype.itemsize
    if not starts:
        raise no_book("books of a character or two", "Add longer ones.")
    length += file.write(end) // dtype.itemsize
    return {"length": length, "starts": starts, "names": names}


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / INDEX)
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from error


def _damaged(folder: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "corpus",
        expected=f"a folder with an undamaged corpus: {INDEX} and {TOKENS}",
        received=f"{received} ({folder})",
        remedy=f"Remove both from {folder}, and build the corpus again from its books.",
    )
