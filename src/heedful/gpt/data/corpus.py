"""The tokens of books as one sequence on disk, divided into a training and a validation split.

A document is the training or the validation text of one book. The tokens of a split are
`end_of_text` d₁ `end_of_text` d₂ … `end_of_text`: each `end_of_text` is predicted as the end of the document before it,
and read as the start of the document after it, to which it belongs. So every token but the first is a target. Where
tokens attend to their own document only, by `Documents(batch.documents)`, none is predicted from another document.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import ArgumentError
from heedful.gpt.data.books import TRAINING_SHARE, Book, no_book
from heedful.gpt.tokenizer import Tokenizer
from heedful.writing import reserved

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

        splits = {
            "train": _tokenize([(book.name, book.training) for book in books], tokenizer),
            "validation": _tokenize([(book.name, book.validation) for book in books], tokenizer),
        }
        index = {"fingerprint": fingerprint} | {
            name: {"length": len(split), "starts": split.starts, "names": split.names}
            for name, split in splits.items()
        }
        _write(folder, np.concatenate([split.tokens for split in splits.values()]), index)
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
            tokens = np.load(folder / TOKENS, mmap_mode="r", allow_pickle=False)
            train, validation = (
                (split["length"], tuple(split["starts"]), tuple(split["names"]))
                for split in (index["train"], index["validation"])
            )
        except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
            raise _damaged(folder, f"{type(error).__name__}: {error}") from error
        if len(tokens) != train[0] + validation[0]:
            raise _damaged(folder, f"{len(tokens)} tokens instead of {train[0] + validation[0]}")
        return cls(
            Split(tokens[: train[0]], *train[1:]), Split(tokens[train[0] :], *validation[1:])
        )


def _fingerprint(books: Sequence[Book], tokenizer: Tokenizer) -> str:
    parts = [TRAINING_SHARE, tokenizer.fingerprint, *((book.name, book.text) for book in books)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _tokenize(named_texts: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Split:
    """Return the tokens of the texts that are not empty, as those of very short books are."""
    named_texts = [(name, text) for name, text in named_texts if text]
    if not named_texts:
        raise no_book("books of a character or two", "Add longer ones.")
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    end = tokenizer.end_of_text
    documents = [np.array([end, *tokenizer.encode(text)], dtype) for _, text in named_texts]
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    return Split(
        np.concatenate([*documents, np.array([end], dtype)]),
        tuple(starts.tolist()),
        tuple(name for name, _ in named_texts),
    )


def _write(folder: Path, tokens: NDArray[Any], index: dict[str, Any]) -> None:
    content = io.BytesIO()
    np.save(content, tokens)
    with (
        reserved(folder / INDEX, "folder") as write_index,
        reserved(folder / TOKENS, "folder") as write_tokens,
    ):
        write_tokens(content.getvalue())
        write_index(json.dumps(index, indent=1) + "\n")
        # The files take their final names when the blocks end: first the tokens, then the index. Without the old index,
        # a process killed in between leaves no corpus at all, instead of new tokens with an old index.
        (folder / INDEX).unlink(missing_ok=True)


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from error
    return index if isinstance(index, dict) else {}


def _damaged(folder: Path, received: str) -> ArgumentError:
    return ArgumentError(
        "corpus",
        expected=f"a folder with an undamaged corpus: {INDEX} and {TOKENS}",
        received=f"{received} ({folder})",
        remedy=f"Remove both from {folder}, and build the corpus again from its books.",
    )
