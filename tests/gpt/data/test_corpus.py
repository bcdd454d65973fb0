"""Books in, tokens on disk out: what is refused, where documents lie, and what a crash leaves."""

import errno
import json
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from heedful.errors import ArgumentError
from heedful.gpt.data.books import Book, read_books, sonnets
from heedful.gpt.data.corpus import Corpus
from heedful.gpt.tokenizer import ByteTokenizer

END = ByteTokenizer.end_of_text
BOOKS = [Book("first", "a" * 19 + "A"), Book("second", "b" * 38 + "BB")]


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def numbers(corpus: Corpus) -> list[list[int]]:
    return [corpus.train.tokens.tolist(), corpus.validation.tokens.tolist()]


def test_a_folder_means_its_text_files_in_order_of_name(tmp_path):
    for name in ("b.txt", "a.txt", "README.md", "c.TXT.bak"):
        written(tmp_path / name, name)
    (tmp_path / "deeper").mkdir()
    written(tmp_path / "deeper" / "d.txt", "d")
    other = written(tmp_path / "other.text", "named by itself")
    books = read_books([tmp_path, other])
    assert [(book.name, book.text) for book in books] == [
        ("a", "a.txt"),
        ("b", "b.txt"),
        ("other", "named by itself"),
    ]


def test_byte_order_marks_and_windows_line_ends_are_no_text(tmp_path):
    (book,) = read_books([written(tmp_path / "a.txt", "\ufeffone\r\ntwo é\r\n")])
    assert book.text == "one\ntwo é\n"


@pytest.mark.parametrize("content", ["", " \n\t", "\ufeff"])
def test_an_empty_book_is_named(tmp_path, content):
    path = written(tmp_path / "empty.txt", content)
    with pytest.raises(ArgumentError, match=rf"empty file: {path}"):
        read_books([path])


def test_a_book_that_is_no_utf8_is_named_with_the_byte(tmp_path):
    path = written(tmp_path / "latin.txt", "é naïve".encode() + "é".encode("latin-1"))
    with pytest.raises(ArgumentError, match=rf"byte 0xe9 at offset 9 of {path}.*iconv"):
        read_books([path])


def test_what_is_no_book_is_named(tmp_path):
    for paths, received in [
        ([], "no book"),
        ([tmp_path / "missing.txt"], "No such file or directory: .*missing.txt"),
        ([tmp_path], f"no .txt file in the folder {tmp_path}"),
    ]:
        with pytest.raises(ArgumentError, match=received):
            read_books(paths)
    book = written(tmp_path / "a.txt", "text")
    with pytest.raises(ArgumentError, match=r"a.txt twice"):
        read_books([book, tmp_path])


@given(text=st.text(min_size=200) | st.text(alphabet="ab\n", min_size=200))
def test_a_book_is_cut_once_near_its_end(text):
    book = Book("", text)
    assert book.training + book.validation == text
    assert 0.05 <= len(book.validation) / len(text) <= 0.11


def test_the_cut_is_at_a_line_break_if_one_is_near():
    line = "x" * 9 + "\n"
    assert Book("", line * 30).training.endswith("\n")
    one_line = Book("", "title\n" + "x" * 1000)
    assert len(one_line.validation) == pytest.approx(0.05 * 1006, abs=1)


def test_sonnets_come_with_the_package():
    assert sonnets().training.startswith("THE SONNETS")
    assert len(sonnets().text) > 90_000


def test_documents_stand_between_ends_of_text_and_sides_apart(tmp_path):
    corpus = Corpus.build(BOOKS, ByteTokenizer(), tmp_path)
    assert numbers(corpus) == [
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
def test_a_token_takes_two_bytes_where_they_suffice(tmp_path, vocab_size, dtype):
    tokenizer = ByteTokenizer()
    tokenizer.vocab_size, tokenizer.end_of_text = vocab_size, vocab_size - 1
    corpus = Corpus.build(BOOKS, tokenizer, tmp_path)
    assert corpus.train.tokens.dtype == dtype
    assert corpus.train.tokens[0] == vocab_size - 1


def test_loading_maps_the_file_and_reads_none_of_it(tmp_path):
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
    """ByteTokenizer that count how many texts they encode."""

    encoded = 0

    def encode(self, text):
        self.encoded += 1
        return super().encode(text)


def test_the_same_books_and_tokenizer_are_not_encoded_again(tmp_path):
    tokenizer = Counting()
    first = numbers(Corpus.build(BOOKS, tokenizer, tmp_path))
    assert numbers(Corpus.build(BOOKS, tokenizer, tmp_path)) == first
    assert tokenizer.encoded == 4


def test_another_text_or_tokenizer_is_encoded_anew(tmp_path):
    Corpus.build(BOOKS, ByteTokenizer(), tmp_path)
    tokenizer = Counting()
    Corpus.build([BOOKS[1], BOOKS[0]], tokenizer, tmp_path)
    assert tokenizer.encoded == 4
    tokenizer.fingerprint = "another"
    Corpus.build([BOOKS[1], BOOKS[0]], tokenizer, tmp_path)
    assert tokenizer.encoded == 8


def test_what_has_no_two_sides_or_no_end_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="a character or two"):
        Corpus.build([Book("short", "a")], ByteTokenizer(), tmp_path)
    endless = ByteTokenizer()
    endless.end_of_text = None
    with pytest.raises(ArgumentError, match="end_of_text"):
        Corpus.build(BOOKS, endless, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_corpus_that_was_there(tmp_path, monkeypatch):
    before = numbers(Corpus.build(BOOKS, ByteTokenizer(), tmp_path))
    write_bytes = Path.write_bytes

    def full(path, content):
        if "corpus.json" in path.name:  # which is written last
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ArgumentError, match="No space left"):
        Corpus.build(BOOKS[:1], ByteTokenizer(), tmp_path)
    assert numbers(Corpus.load(tmp_path)) == before
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("renamed", [0, 1])
def test_a_kill_while_files_take_their_names_leaves_no_mixed_corpus(tmp_path, monkeypatch, renamed):
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
    for told, held in [
        (sound, whole[:-2]),
        (sound, b""),
        (sound, b"no numbers"),
        (b"{", whole),
        (b"[]", whole),
        (b'{"train": 1}', whole),
        (json.dumps(fewer).encode(), whole),
    ]:
        index.write_bytes(told)
        tokens.write_bytes(held)
        with pytest.raises(ArgumentError, match=r"corpus: .*build the corpus again"):
            Corpus.load(tmp_path)
    with pytest.raises(ArgumentError, match="No such file"):
        Corpus.load(tmp_path / "nowhere")
