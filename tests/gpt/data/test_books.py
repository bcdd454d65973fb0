"""Books: how they are read, divided and refused."""

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from heedful.errors import ArgumentError
from heedful.gpt.data.books import Book, read_books, sonnets


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_folder_stands_for_its_text_files_in_order_of_name(tmp_path):
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


def test_byte_order_marks_and_windows_line_ends_are_removed(tmp_path):
    (book,) = read_books([written(tmp_path / "a.txt", "\ufeffone\r\ntwo é\r\n")])
    assert book.text == "one\ntwo é\n"


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
    assert book.training + book.validation == text
    assert 0.05 <= len(book.validation) / len(text) <= 0.11


def test_a_book_is_divided_at_a_line_break_if_one_is_near():
    line = "x" * 9 + "\n"
    assert Book("", line * 30).training.endswith("\n")
    one_line = Book("", "title\n" + "x" * 1000)
    assert len(one_line.validation) == pytest.approx(0.05 * 1006, abs=1)


def test_sonnets_come_with_the_package():
    assert sonnets().training.startswith("THE SONNETS")
    assert len(sonnets().text) > 90_000
