"""Books: how they are read, divided and refused."""

import os
import socket
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from heedful.errors import ArgumentError
from heedful.gpt.data.books import PIECE, Book, read_books, sonnets, training_sample
from heedful.gpt.tokenizer import make_tokenizer


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def whole(book: Book) -> str:
    return "".join([*book.training(), *book.validation()])


def test_a_folder_stands_for_its_text_files_in_order_of_name(tmp_path):
    for name in ("b.txt", "a.txt", "README.md", "c.TXT.bak"):
        written(tmp_path / name, name)
    (tmp_path / "deeper").mkdir()
    written(tmp_path / "deeper" / "d.txt", "d")
    other = written(tmp_path / "other.text", "named by itself")
    books = read_books([tmp_path, other])
    assert [(book.name, whole(book)) for book in books] == [
        ("a", "a.txt"),
        ("b", "b.txt"),
        ("other", "named by itself"),
    ]


def test_byte_order_marks_and_windows_line_ends_are_removed(tmp_path):
    (book,) = read_books([written(tmp_path / "a.txt", "\ufeffone\r\ntwo é\r\n")])
    assert whole(book) == "one\ntwo é\n"


@pytest.mark.parametrize("content", ["", " \n\t", "\ufeff"])
def test_an_empty_book_is_named(tmp_path, content):
    path = written(tmp_path / "empty.txt", content)
    with pytest.raises(ArgumentError, match=rf"empty file: {path}"):
        read_books([path])


def test_a_book_that_is_not_utf8_is_named_with_the_byte(tmp_path):
    path = written(tmp_path / "latin.txt", "é naïve".encode() + "é".encode("latin-1"))
    with pytest.raises(ArgumentError, match=rf"byte 0xe9 at offset 9 of {path}.*iconv"):
        read_books([path])


def test_missing_books_empty_folders_and_duplicates_are_named(tmp_path):
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
def test_a_book_is_divided_once_near_its_end(text):
    book = Book("", text)
    assert whole(book) == text
    assert 0.05 <= len("".join(book.validation())) / len(text) <= 0.11


def test_a_book_is_divided_at_a_line_break_if_one_is_near():
    line = "x" * 9 + "\n"
    assert "".join(Book("", line * 30).training()).endswith("\n")
    one_line = Book("", "title\n" + "x" * 1000)
    assert len("".join(one_line.validation())) == pytest.approx(0.05 * 1006, abs=1)


def test_sonnets_come_with_the_package():
    assert whole(sonnets()).startswith("THE SONNETS")
    assert len(whole(sonnets())) > 90_000


def test_a_book_in_a_file_is_read_as_the_whole_text_would_be(tmp_path):
    text = "é\r\n" * 100_000 + "one line\r" * 20_000 + "\r\r\n"
    (book,) = read_books([written(tmp_path / "long.txt", text)])
    expected = text.replace("\r\n", "\n")
    assert whole(book) == expected
    in_memory = Book("long", expected)
    assert (book.size, book.digest) == (in_memory.size, in_memory.digest)
    assert book.size == len(expected.encode())
    assert "".join(book.training()) == "".join(in_memory.training())


def test_pieces_have_the_tokens_of_the_whole_text():
    pytest.importorskip("tokenizers", reason="pip install -e '.[train]'")
    words = [
        "it's",
        "  two",
        "\n\n",
        "naïve",
        " \t",
        "1984",
        "—",
        "\n",
        "don't ",
        "...",
        "x" * 3000,
    ]
    text = " ".join(words[n * n % 7] + words[n % 11] for n in range(3000))
    pieces = list(Book("long", text).training())
    assert len(pieces) > 3
    assert max(map(len, pieces)) <= 2 * PIECE
    tokenizer = make_tokenizer("bpe", pieces, 400)
    ids = [id for piece in pieces for id in tokenizer.encode(piece)]
    assert ids == tokenizer.encode("".join(pieces))


def test_a_tokenizer_is_trained_on_a_sample_of_long_books():
    short, long = (
        Book("short", "to be or not to be\n" * 10_000),
        Book("long", "to be\n" * 4_000_000),
    )
    assert "".join(training_sample([short])) == "".join(short.training())
    first, second = ([*training_sample([short, long])] for _ in range(2))
    assert first == second
    assert 7_000_000 < sum(map(len, first)) < 9_000_000


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def ten_sparse_gigabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 10**9)


def a_sparse_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**9)


def a_binary_file(path: Path) -> None:
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(100))


@pytest.mark.parametrize(
    ("make", "received"),
    [
        (a_fifo, "Not a regular file"),
        (a_folder, "Is a directory"),
        (a_socket, "No such device or address"),
        (a_loop, "Too many levels of symbolic links"),
        (a_device, "Not a regular file"),
        (ten_sparse_gigabytes, "10,000,000,000 bytes"),
        (a_sparse_file, "null characters"),
        (a_binary_file, "null characters"),
    ],
)
def test_what_is_not_a_text_is_refused_at_once(tmp_path, monkeypatch, make, received):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "book.txt")
    with pytest.raises(ArgumentError, match=received):
        read_books([tmp_path])


def test_a_name_that_no_file_can_have_is_refused():
    with pytest.raises(ArgumentError, match="No file can have this name"):
        read_books(["a\0b.txt"])
