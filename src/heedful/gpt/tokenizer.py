"""Text to token ids and back: bytes, byte pairs trained on the books, GPT-2's, or a foreign model's tokenizer.json.

Text is always text: whatever a book says, also the letters "<|endoftext|>", `encode` takes as letters. What stands
between texts is the id `end_of_text`, which no text encodes to and which decodes to nothing.
"""

import hashlib
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

from heedful.errors import ArgumentError, MissingExtraError
from heedful.writing import reserved

KINDS = ("bytes", "bpe", "gpt2")
END_OF_TEXT = "<|endoftext|>"
CONFIG, VOCABULARY = "tokenizer_config.json", "tokenizer.json"  # transformers' names
UNFINISHED = "\ufffd"  # what bytes that are no character, or not yet, decode to
GPT2_FILES = {  # as tiktoken names them in its cache, with the SHA-256 of what they hold
    "gpt-2/encodings/main/vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "gpt-2/encodings/main/encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}


class Tokenizer(ABC):
    """What every kind can do.

    Attributes:
        vocab_size: ids are from 0 to below it.
        end_of_text: the id that stands between texts; None where a foreign model has none.
        fingerprint: the same for tokenizers that give the same ids.
    """

    vocab_size: int
    end_of_text: int | None
    fingerprint: str

    def encode(self, text: str) -> list[int]:
        """The text's ids. A foreign model's own start tokens come with them, where its file asks for them.

        Raises:
            ArgumentError: half a surrogate pair, which no encoding of text can hold.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(
                "text",
                expected="Unicode text",
                received=f"{text[error.start]!r} at character {error.start}",
                remedy='Decode what was read as UTF-8 with errors="replace".',
            ) from error
        return self._ids(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The ids' text, special tokens left out; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ArgumentError: an id outside the vocabulary.
        """
        for id in ids:
            if not 0 <= id < self.vocab_size:
                raise ArgumentError(
                    "ids",
                    expected=f"ids from 0 to {self.vocab_size - 1}",
                    received=str(id),
                    remedy="Decode with the tokenizer that the model was trained with.",
                )
        return self._text(ids)

    def stream(self) -> "TextStream":
        """Decodes ids that come one by one."""
        return TextStream(self)

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load` needs into an existing folder."""

    @abstractmethod
    def _ids(self, text: str) -> list[int]: ...

    @abstractmethod
    def _text(self, ids: Sequence[int]) -> str: ...


class TextStream:
    """Text out of ids that come one by one; a character is given out once all its bytes are there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the newest: from the one that last completed the text
        self._given = ""  # how much of their text was given out

    def push(self, id: int) -> str:
        """What the id adds to the text: empty while a character is unfinished."""
        self._ids.append(id)
        text = self._tokenizer.decode(self._ids)
        certain = text[: len(text) - _unfinished(text)]
        added = certain[len(self._given) :]
        if certain == text:
            self._ids = [id]  # kept, for some tokenizers strip the space from a first token
            self._given = self._tokenizer.decode(self._ids)
        else:
            self._given = max(self._given, certain, key=len)
        return added

    def end(self) -> str:
        """What was still held back: U+FFFD for the bytes of an unfinished character."""
        text = self._tokenizer.decode(self._ids)
        return text[len(self._given) :]


def _unfinished(text: str) -> int:
    """How many of the last characters may yet become another: a character has at most 3 bytes before its last."""
    last = text[-3:]
    return len(last) - len(last.rstrip(UNFINISHED))


class Bytes(Tokenizer):
    """One id for each byte of UTF-8, and 256 for the end of a text. Needs no training and no package."""

    vocab_size = 257
    end_of_text = 256
    fingerprint = "bytes"

    def save(self, folder: Path) -> None:
        _save_config(folder, {"kind": "bytes"})

    def _ids(self, text: str) -> list[int]:
        return list(text.encode())

    def _text(self, ids: Sequence[int]) -> str:
        return bytes(id for id in ids if id != self.end_of_text).decode(errors="replace")


class Trained(Tokenizer):
    """A tokenizer of the `tokenizers` package: byte pairs of our own training, or a foreign model's.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; it is changed to neither pad nor truncate, and to take special tokens'
            names in a text as letters.
        end_of_text: the token that ends a text; None if it has none.
    """

    def __init__(self, tokenizer, end_of_text: str | None) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._end = end_of_text
        self.fingerprint = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        self.vocab_size = tokenizer.get_vocab_size()
        self.end_of_text = None if end_of_text is None else tokenizer.token_to_id(end_of_text)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Trained":
        """Byte-level byte-pair encoding (Sennrich et al. 2016; over bytes as in GPT-2), the same for the same texts.

        Args:
            texts: what the pairs are counted in.
            vocab_size: at least 257: the bytes and the end of a text. Few texts may give fewer pairs.

        Raises:
            ArgumentError: a vocabulary too small for the bytes.
            MissingExtraError: the extra "train" is not installed.
        """
        if vocab_size < Bytes.vocab_size:
            raise ArgumentError(
                "vocab_size",
                expected=f"at least {Bytes.vocab_size}: 256 bytes and the end of a text",
                received=str(vocab_size),
                remedy='Take more, or the tokenizer "bytes".',
            )
        try:
            import tokenizers  # pyright: ignore[reportMissingImports] - an extra
        except ImportError as error:
            raise MissingExtraError("A byte-pair tokenizer", "train") from error

        bytes_as_letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = bytes_as_letters
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,  # a pair seen once teaches nothing
            initial_alphabet=bytes_as_letters.alphabet(),
            special_tokens=[END_OF_TEXT],
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer, END_OF_TEXT)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers reads too."""
        with reserved(folder / VOCABULARY, "folder") as write:
            write(self._tokenizer.to_str(pretty=True))
        _save_config(folder, {"eos_token": self._end})

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)


class GPT2(Tokenizer):
    """GPT-2's byte pairs, by `tiktoken`, from files that tiktoken has downloaded before; nothing is downloaded here.

    Raises:
        ArgumentError: the two files are not in tiktoken's cache.
        MissingExtraError: the extra "train" is not installed.
    """

    fingerprint = "gpt2"

    def __init__(self) -> None:
        try:
            import tiktoken  # pyright: ignore[reportMissingImports] - an extra
        except ImportError as error:
            raise MissingExtraError("GPT-2's tokenizer", "train") from error
        _check_gpt2_files()
        self._encoding = tiktoken.get_encoding("gpt2")
        self.vocab_size = self._encoding.n_vocab
        self.end_of_text = self._encoding.eot_token

    def save(self, folder: Path) -> None:
        """Write only that it is GPT-2's: its files stay in tiktoken's cache."""
        _save_config(folder, {"kind": "gpt2"})

    def _ids(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text)

    def _text(self, ids: Sequence[int]) -> str:
        return self._encoding.decode([id for id in ids if id != self.end_of_text])


def make(kind: str, texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of a kind: "bytes", "bpe" (trained on the texts, with that vocabulary) or "gpt2".

    Raises:
        ArgumentError: another kind, or what the kind itself refuses.
        MissingExtraError: the kind's package is not installed.
    """
    if kind not in KINDS:
        raise ArgumentError(
            "tokenizer",
            expected=" or ".join(f'"{known}"' for known in KINDS),
            received=repr(kind),
            remedy='Take "bpe", unless you have a reason for another.',
        )
    if kind == "bpe":
        return Trained.train(texts, vocab_size)
    return Bytes() if kind == "bytes" else GPT2()


def load(folder: str | Path) -> Tokenizer:
    """The tokenizer that was saved into a folder, or a foreign model's: a folder with tokenizer.json, or that file.

    A foreign model's end of text is the `eos_token` of its tokenizer_config.json, where there is one.

    Raises:
        ArgumentError: there is none, or its files cannot be read.
        MissingExtraError: its package is not installed.
    """
    path = Path(folder)
    folder, vocabulary = (path.parent, path) if path.is_file() else (path, path / VOCABULARY)
    config = _read_config(folder / CONFIG) if (folder / CONFIG).exists() else {}
    if vocabulary.exists():
        return Trained(_read_vocabulary(vocabulary), _name_of(config.get("eos_token")))
    if config.get("kind") in ("bytes", "gpt2"):
        return Bytes() if config["kind"] == "bytes" else GPT2()
    raise ArgumentError(
        "tokenizer",
        expected=f"a folder with a {VOCABULARY}, or one that a tokenizer of heedful was saved into",
        received=str(path),
        remedy="Name the folder of a trained model, or a tokenizer.json.",
    )


def _save_config(folder: Path, config: dict) -> None:
    with reserved(folder / CONFIG, "folder") as write:
        write(json.dumps(config, indent=2) + "\n")


def _read_config(path: Path) -> dict:
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise _unreadable(path, error) from error
    if not isinstance(config, dict):
        raise _unreadable(path, f"a {type(config).__name__}")
    return config


def _read_vocabulary(path: Path):
    try:
        import tokenizers  # pyright: ignore[reportMissingImports] - an extra
    except ImportError as error:
        raise MissingExtraError(f"The tokenizer {path}", "train") from error
    content = path.read_bytes()
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise _unreadable(path, error) from error


def _name_of(token: str | dict | None) -> str | None:
    """A special token's letters; tokenizer_config.json has them bare or among its other properties."""
    return token["content"] if isinstance(token, dict) else token


def _unreadable(path: Path, received: object) -> ArgumentError:
    return ArgumentError(
        "tokenizer",
        expected=f"a readable {path.name}",
        received=f"{received} ({path})",
        remedy="The file is damaged or of another kind; save or download it again.",
    )


def _check_gpt2_files() -> None:
    """Raise unless tiktoken would find both files, whole: it downloads what it misses."""
    cache = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if cache is None:
        cache = str(Path(tempfile.gettempdir()) / "data-gym-cache")
    for name, digest in GPT2_FILES.items():
        url = f"https://openaipublic.blob.core.windows.net/{name}"
        file = Path(cache) / hashlib.sha1(url.encode()).hexdigest()
        if not cache or not file.is_file() or _sha256(file) != digest:
            raise ArgumentError(
                "tokenizer",
                expected="GPT-2's vocab.bpe and encoder.json in tiktoken's cache",
                received=f"no whole {Path(name).name} in {cache or 'it: TIKTOKEN_CACHE_DIR is empty'}",
                remedy='Where there is a network: python -c "import tiktoken; '
                "tiktoken.get_encoding('gpt2')\", with TIKTOKEN_CACHE_DIR naming a folder that stays.",
            )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
