"""Tokenizers: bytes, byte pairs trained on the books, GPT-2's, and any tokenizer.json.

`encode` treats all text as text, even if it contains the letters "<|endoftext|>". Texts are separated by the id
`end_of_text`, which no text encodes to and which decodes to nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heedful.errors import ArgumentError, MissingExtraError
from heedful.reading import read_file, read_json
from heedful.writing import reserved

KINDS: tuple[str, ...] = ("bytes", "bpe", "gpt2")
END_OF_TEXT = "<|endoftext|>"
CONFIG, VOCABULARY = "tokenizer_config.json", "tokenizer.json"  # transformers' names
MAX_VOCABULARY = 1 << 26  # bytes; the largest tokenizer.json of well-known models has 33 MB
STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")  # of a tokenizer.json
# The steps that insert a text, and the field that holds it. A text is prepended to each piece between added tokens.
INSERTIONS = {"Replace": "content", "Prepend": "prepend"}
MAX_GROWTH = 1000  # Llama's only replacement makes no text longer
REPLACEMENT = "\ufffd"  # the character that decoding puts in place of invalid or incomplete bytes


class Tokenizer(ABC):
    """The interface of all tokenizers.

    Attributes:
        vocab_size: the number of ids, which are 0 to vocab_size - 1.
        end_of_text: the id that separates texts; None if the tokenizer has none.
        fingerprint: a string that is the same for tokenizers with the same ids.
    """

    vocab_size: int
    end_of_text: int | None
    fingerprint: str

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with the start token that some tokenizer.json files ask for.

        Args:
            text: any Unicode text.

        Returns:
            The ids.

        Raises:
            ArgumentError: the text contains half a surrogate pair, which UTF-8 cannot represent.

        Examples:
            >>> ByteTokenizer().encode("hé")
            [104, 195, 169]
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(
                "text",
                expected="Unicode text",
                received=f"{text[error.start]!r} at character {error.start}",
                remedy='Decode the input as UTF-8 with errors="replace".',
            ) from error
        return self._encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: the ids.

        Returns:
            The text.

        Raises:
            ArgumentError: an id is outside the vocabulary.

        Examples:
            >>> ByteTokenizer().decode([104, 195, 169])
            'hé'
        """
        for id in ids:
            if not 0 <= id < self.vocab_size:
                raise ArgumentError(
                    "ids",
                    expected=f"ids from 0 to {self.vocab_size - 1}",
                    received=str(id),
                    remedy="Decode with the tokenizer that the model was trained with.",
                )
        return self._decode(ids)

    def stream(self) -> TextStream:
        """Return a decoder for ids that arrive one at a time."""
        return TextStream(self)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that `load_tokenizer` reads into an existing folder.

        Raises:
            ArgumentError: a file cannot be written.
        """

    @abstractmethod
    def _encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def _decode(self, ids: Sequence[int]) -> str: ...


class TextStream:
    """A decoder for ids that arrive one at a time; it returns a character once all of its bytes are there.

    Args:
        tokenizer: the tokenizer of the ids.

    Examples:
        >>> stream = TextStream(ByteTokenizer())
        >>> [stream.push(id) for id in [104, 195, 169]]
        ['h', '', 'é']
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # from the id that last completed the text
        self._returned = ""  # the part of their text that was returned

    def push(self, id: int) -> str:
        """Return the text that an id adds, which is empty while a character is incomplete."""
        self._ids.append(id)
        text = self._tokenizer.decode(self._ids)
        complete = text[: len(text) - _incomplete(text)]
        added = complete[len(self._returned) :]
        if complete == text:
            self._ids = [id]  # kept, because some tokenizers strip the space from the first token
            self._returned = self._tokenizer.decode(self._ids)
        else:
            self._returned = max(self._returned, complete, key=len)
        return added

    def end(self) -> str:
        """Return the text held back: U+FFFD for the bytes of an incomplete character."""
        text = self._tokenizer.decode(self._ids)
        return text[len(self._returned) :]


def _incomplete(text: str) -> int:
    """Return how many of the last characters may still change: a character has at most 3 bytes before its last."""
    last = text[-3:]
    return len(last) - len(last.rstrip(REPLACEMENT))


class ByteTokenizer(Tokenizer):
    """One id per byte of UTF-8, and 256 for the end of a text; needs neither training nor a package.

    Examples:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("to be"), tokenizer.end_of_text
        ([116, 111, 32, 98, 101], 256)
    """

    vocab_size: int = 257
    end_of_text: int | None = 256
    fingerprint: str = "bytes"

    def save(self, folder: Path) -> None:
        """Write the kind of the tokenizer into tokenizer_config.json."""
        _save_config(folder, {"kind": "bytes"})

    def _encode(self, text: str) -> list[int]:
        return list(text.encode())

    def _decode(self, ids: Sequence[int]) -> str:
        return bytes(id for id in ids if id != self.end_of_text).decode(errors="replace")


class SubwordTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` package: byte pairs trained here, or any tokenizer.json.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; padding, truncation and special tokens inside texts are turned off.
        end_of_text: the token that ends a text; None if there is none.

    Examples:
        >>> tokenizer = SubwordTokenizer.train(["to be or not to be"] * 3, vocab_size=260)
        >>> tokenizer.decode(tokenizer.encode("to be"))
        'to be'
    """

    def __init__(self, tokenizer: Any, end_of_text: str | None) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._end = end_of_text
        self.fingerprint: str = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        self.vocab_size: int = tokenizer.get_vocab_size()
        self.end_of_text: int | None = (
            None if end_of_text is None else tokenizer.token_to_id(end_of_text)
        )

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> SubwordTokenizer:
        """Train byte-level byte-pair encoding (Sennrich et al. 2016, Algorithm 1; over bytes as in GPT-2).

        Args:
            texts: the texts in which pairs are counted.
            vocab_size: at least 257, for the bytes and the end of a text. Short texts may yield fewer ids.

        Returns:
            A tokenizer that is the same for the same texts.

        Raises:
            ArgumentError: the vocabulary is too small for the bytes.
            MissingExtraError: the extra "train" is not installed.
        """
        if vocab_size < ByteTokenizer.vocab_size:
            raise ArgumentError(
                "vocab_size",
                expected=f"at least {ByteTokenizer.vocab_size}: 256 bytes and the end of a text",
                received=str(vocab_size),
                remedy='Choose a larger vocabulary, or the tokenizer "bytes".',
            )
        try:
            import tokenizers  # pyright: ignore[reportMissingImports] - an extra
        except ImportError as error:
            raise MissingExtraError("A byte-pair tokenizer", "train") from error

        byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = byte_level
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,  # a pair that occurs once does not generalise
            initial_alphabet=byte_level.alphabet(),
            special_tokens=[END_OF_TEXT],
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer, END_OF_TEXT)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers can read as well."""
        with reserved(folder / VOCABULARY, "folder") as write:
            write(self._tokenizer.to_str(pretty=True))
        _save_config(folder, {"eos_token": self._end})

    def _encode(self, text: str) -> list[int]:
        with _failures_named("encode"):
            return self._tokenizer.encode(text).ids

    def _decode(self, ids: Sequence[int]) -> str:
        with _failures_named("decode"):
            return self._tokenizer.decode(ids)


class GPT2Tokenizer(Tokenizer):
    """GPT-2's byte pairs from `tiktoken`, which keeps the vocabulary in its cache and downloads it on first use.

    Raises:
        ArgumentError: the vocabulary is not in the cache and cannot be downloaded.
        MissingExtraError: the extra "train" is not installed.
    """

    fingerprint: str = "gpt2"

    def __init__(self) -> None:
        try:
            import tiktoken  # pyright: ignore[reportMissingImports] - an extra
        except ImportError as error:
            raise MissingExtraError("GPT-2's tokenizer", "train") from error
        try:
            self._encoding = tiktoken.get_encoding("gpt2")
        except (OSError, ValueError) as error:  # a network that fails, a file with a wrong checksum
            raise ArgumentError(
                "tokenizer",
                expected="GPT-2's vocabulary in tiktoken's cache, or a network to download it from",
                received=f"{type(error).__name__}: {error}",
                remedy="Copy a cache from another machine, and set TIKTOKEN_CACHE_DIR to its folder.",
            ) from error
        self.vocab_size: int = self._encoding.n_vocab
        self.end_of_text: int | None = self._encoding.eot_token

    def save(self, folder: Path) -> None:
        """Write the kind of the tokenizer into tokenizer_config.json; the vocabulary stays in tiktoken's cache."""
        _save_config(folder, {"kind": "gpt2"})

    def _encode(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._encoding.decode([id for id in ids if id != self.end_of_text])


def make_tokenizer(kind: str, texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Make a tokenizer of a kind.

    Args:
        kind: "bytes", "bpe" or "gpt2".
        texts: the texts to train "bpe" on.
        vocab_size: the vocabulary of "bpe".

    Returns:
        The tokenizer.

    Raises:
        ArgumentError: the kind is unknown, or the tokenizer cannot be made.
        MissingExtraError: the package of the kind is not installed.

    Examples:
        >>> make_tokenizer("bytes", texts=[], vocab_size=0).vocab_size
        257
    """
    if kind not in KINDS:
        raise ArgumentError(
            "tokenizer",
            expected=" or ".join(f'"{known}"' for known in KINDS),
            received=repr(kind),
            remedy='Use "bpe", unless there is a reason for another.',
        )
    if kind == "bpe":
        return SubwordTokenizer.train(texts, vocab_size)
    return ByteTokenizer() if kind == "bytes" else GPT2Tokenizer()


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load a tokenizer that was saved into a folder, or the one in a tokenizer.json.

    The end of a text is the `eos_token` in the tokenizer_config.json beside tokenizer.json, if there is one.

    Args:
        folder: a folder, or a tokenizer.json itself.

    Returns:
        The tokenizer.

    Raises:
        ArgumentError: there is no tokenizer, or its files cannot be read.
        MissingExtraError: its package is not installed.
    """
    path = Path(folder)
    folder, vocabulary = (path.parent, path) if path.is_file() else (path, path / VOCABULARY)
    config = _read_config(folder / CONFIG) if (folder / CONFIG).exists() else {}
    if vocabulary.exists():
        return SubwordTokenizer(_read_vocabulary(vocabulary), _end_token(config, folder / CONFIG))
    if config.get("kind") in ("bytes", "gpt2"):
        return ByteTokenizer() if config["kind"] == "bytes" else GPT2Tokenizer()
    raise ArgumentError(
        "tokenizer",
        expected=f"a folder with a {VOCABULARY}, or one that a tokenizer of heedful was saved into",
        received=str(path),
        remedy="Name the folder of a trained model, or a tokenizer.json.",
    )


def _save_config(folder: Path, config: dict[str, Any]) -> None:
    with reserved(folder / CONFIG, "folder") as write:
        write(json.dumps(config, indent=2) + "\n")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def _read_vocabulary(path: Path) -> Any:
    """Return the `tokenizers.Tokenizer` in a file."""
    try:
        import tokenizers  # pyright: ignore[reportMissingImports] - an extra
    except ImportError as error:
        raise MissingExtraError(f"The tokenizer {path}", "train") from error
    try:
        content = read_file(path, MAX_VOCABULARY)
        _check_steps(json.loads(content))
        return tokenizers.Tokenizer.from_buffer(content)
    except RecursionError as error:
        raise _unreadable(path, "text that is nested too deeply") from error
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the package panics, and panics are no Exception
        raise _unreadable(path, error) from error


def _check_steps(fields: Any) -> None:
    """Raise `ValueError` if a step asks for much memory, or steps, one after the other, make a text too long."""
    growth = 1
    rest = [fields.get(part) for part in STEPS] if isinstance(fields, dict) else []
    while rest:
        step = rest.pop()
        if isinstance(step, dict) and step.get("type") in INSERTIONS:
            growth *= max(1, len(str(step.get(INSERTIONS[step["type"]], ""))))
        elif isinstance(step, dict) and step.get("type") == "Precompiled":
            _check_charsmap(base64.b64decode(str(step.get("precompiled_charsmap"))))
        elif isinstance(step, dict | list):
            rest += step.values() if isinstance(step, dict) else step
        if growth > MAX_GROWTH:
            raise ValueError(f"steps that make a text {growth} times as long")


def _check_charsmap(charsmap: bytes) -> None:
    """Raise `ValueError` if the trie of a normalizer, whose size comes first, is larger than the whole."""
    size = int.from_bytes(charsmap[:4], "little")
    if size > len(charsmap):
        raise ValueError(f"a normalizer that claims {size} bytes and has {len(charsmap)}")


def _end_token(config: dict[str, Any], path: Path) -> str | None:
    """Return the text of the end token; tokenizer_config.json holds it alone or among other properties."""
    token = config.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str | None) or any(
        "\ud800" <= letter <= "\udfff" for letter in text or ""
    ):
        raise _unreadable(path, f"an eos_token that is not text: {text!r:.100}")
    return text


@contextmanager
def _failures_named(action: str) -> Iterator[None]:
    """Turn an exception of the `tokenizers` package into an `ArgumentError`."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # it raises Exception itself, and panics are no Exception
        raise ArgumentError(
            "tokenizer",
            expected=f"a {VOCABULARY} that can {action} any text",
            received=f"{error}",
            remedy="The file is damaged or its regular expressions take too long; download it again.",
        ) from error


def _unreadable(path: Path, received: object) -> ArgumentError:
    return ArgumentError(
        "tokenizer",
        expected=f"a readable {path.name}",
        received=f"{received} ({path})",
        remedy="The file is damaged or has another format; save or download it again.",
    )
