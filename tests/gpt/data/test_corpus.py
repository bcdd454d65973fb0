"""The corpus on disk: the order of documents, its reuse, and what remains after a crash."""

import errno
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from heedful.errors import ArgumentError
from heedful.gpt.data.books import Book
from heedful.gpt.data.corpus import Corpus
from heedful.gpt.tokenizer import ByteTokenizer

END = ByteTokenizer.end_of_text
BOOKS = [Book("first", "a" * 19 + "A"), Book("second", "b" * 38 + "BB")]


def token_lists(corpus: Corpus) -> list[list[int]]:
    return [corpus.train.tokens.tolist(), corpus.validation.tokens.tolist()]


def test_each_document_begins_with_the_end_of_text(tmp_path):
    corpus = Corpus.build(BOOKS, ByteTokenizer(), tmp_path)
    assert token_lists(corpus) == [
        [END, *b"a" * 19, END, *b"b" * 38, END],
        [END, *b"A", END, *b"BB", END],
    ]
    assert corpus.train.starts == (0, 20)
    assert corpus.validation.starts == (0, 2)
    assert corpus.train.names == corpus.validation.names == ("first", "second")


def test_books_of_one_name_are_two_documents(tmp_path):
    corpus = Corpus.build([BOOKS[0], Book("first", "c" * 40)], ByteTokenizer(), tmp_path)
    assert corpus.train.names == ("first", "first")
    assert corpus.train.starts == (0, 20)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_tokens_take_two_bytes_if_the_vocabulary_allows(tmp_path, vocab_size, dtype):
    tokenizer = ByteTokenizer()
    tokenizer.vocab_size, tokenizer.end_of_text = vocab_size, vocab_size - 1
    corpus = Corpus.build(BOOKS, tokenizer, tmp_path)
    assert corpus.train.tokens.dtype == dtype
    assert corpus.train.tokens[0] == vocab_size - 1


def test_loading_maps_the_file_without_reading_it(tmp_path):
    Corpus.build([Book("long", "some text\n" * 200_000)], ByteTokenizer(), tmp_path)
    size = (tmp_path / "tokens.npy").stat().st_size
    tracemalloc.start()
    corpus = Corpus.load(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size / 20
    assert isinstance(corpus.train.tokens, np.memmap)
    assert not corpus.train.tokens.flags.writeable


class Counting(ByteTokenizer):
    """A byte tokenizer that counts the texts it encodes."""

    encoded = 0

    def encode(self, text):
        self.encoded += 1
        return super().encode(text)


def test_the_same_books_and_tokenizer_are_not_encoded_again(tmp_path):
    tokenizer = Counting()
    first = token_lists(Corpus.build(BOOKS, tokenizer, tmp_path))
    assert token_lists(Corpus.build(BOOKS, tokenizer, tmp_path)) == first
    assert tokenizer.encoded == 4


def test_other_books_or_another_tokenizer_are_encoded_again(tmp_path):
    Corpus.build(BOOKS, ByteTokenizer(), tmp_path)
    tokenizer = Counting()
    Corpus.build([BOOKS[1], BOOKS[0]], tokenizer, tmp_path)
    assert tokenizer.encoded == 4
    tokenizer.fingerprint = "another"
    Corpus.build([BOOKS[1], BOOKS[0]], tokenizer, tmp_path)
    assert tokenizer.encoded == 8


def test_books_too_short_and_tokenizers_without_an_end_of_text_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="a character or two"):
        Corpus.build([Book("short", "a")], ByteTokenizer(), tmp_path)
    endless = ByteTokenizer()
    endless.end_of_text = None
    with pytest.raises(ArgumentError, match="end_of_text"):
        Corpus.build(BOOKS, endless, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_old_corpus_intact(tmp_path, monkeypatch):
    before = token_lists(Corpus.build(BOOKS, ByteTokenizer(), tmp_path))
    write_bytes = Path.write_bytes

    def full(path, content):
        if "corpus.json" in path.name:  # written last
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ArgumentError, match="No space left"):
        Corpus.build(BOOKS[:1], ByteTokenizer(), tmp_path)
    assert token_lists(Corpus.load(tmp_path)) == before
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("renamed", [0, 1])
def test_a_kill_while_files_are_renamed_leaves_no_mixed_corpus(tmp_path, monkeypatch, renamed):
    Corpus.build(BOOKS, ByteTokenizer(), tmp_path)
    replace, done = Path.replace, []

    def killed(path, target):
        if len(done) == renamed:
            raise KeyboardInterrupt
        done.append(target)
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            Corpus.build(BOOKS[:1], ByteTokenizer(), tmp_path)
    with pytest.raises(ArgumentError, match="corpus"):
        Corpus.load(tmp_path)
    assert len(Corpus.build(BOOKS[:1], ByteTokenizer(), tmp_path).train.names) == 1


def test_a_damaged_corpus_is_refused(tmp_path):
    index, tokens = tmp_path / "corpus.json", tmp_path / "tokens.npy"
    Corpus.build(BOOKS, ByteTokenizer(), tmp_path)
    sound, whole = index.read_bytes(), tokens.read_bytes()
    fewer = json.loads(sound)
    fewer["train"]["length"] -= 1
    for index_content, tokens_content in [
        (sound, whole[:-2]),
        (sound, b""),
        (sound, b"no numbers"),
        (b"{", whole),
        (b"[]", whole),
        (b'{"train": 1}', whole),
        (json.dumps(fewer).encode(), whole),
    ]:
        index.write_bytes(index_content)
        tokens.write_bytes(tokens_content)
        with pytest.raises(ArgumentError, match=r"corpus: .*build the corpus again"):
            Corpus.load(tmp_path)
    with pytest.raises(ArgumentError, match="No such file"):
        Corpus.load(tmp_path / "nowhere")


PREPARE = """
import random, resource
from pathlib import Path
from heedful.gpt.data.books import read_books, training_sample
from heedful.gpt.data.corpus import Corpus
from heedful.gpt.tokenizer import make_tokenizer
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
make_tokenizer("bpe", ["to be or not to be"], 300)
before = peak()
books = read_books(["long.txt"])
tokenizer = make_tokenizer("bpe", training_sample(books), 300)
corpus = Corpus.build(books, tokenizer, ".")
print(peak() - before, len(corpus.train))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_preparing_a_long_book_takes_little_memory(tmp_path):
    pytest.importorskip("tokenizers", reason="pip install -e '.[train]'")
    lines = [f"The {n % 97}th tide of {n % 1009} is full,\n" for n in range(160_000)]
    (tmp_path / "long.txt").write_text("".join(lines))
    assert (tmp_path / "long.txt").stat().st_size > 4_000_000
    prepared = subprocess.run(
        [sys.executable, "-c", PREPARE],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    grown, tokens = map(int, prepared.stdout.split())
    assert tokens > 1_000_000
    assert grown < 128 * 1024  # KiB; the whole text at once takes 900 MiB
