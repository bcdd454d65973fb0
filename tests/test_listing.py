"""Tests of code listings: whole functions, once each, without docstrings, and whatever the file holds."""

import re

from heedful.listing import highlighted, listings_of

SOURCE = '''import torch

y = 1


class Outer:
    """Not shown."""

    def method(self, x):
        """Return x.

        Twice.
        """
        text = "<b>"

        def inner(z):
            return z

        return inner(x), text


def broken_later(x):
    return x
'''


def plain(code) -> str:
    return (
        re.sub("<.*?>", "", str(code))
        .replace("&quot;", '"')
        .replace("&lt;", "<")
        .replace("&gt;", ">")
    )


def test_the_innermost_function_is_listed_without_its_docstring(tmp_path):
    file = tmp_path / "my.py"
    file.write_text(SOURCE)
    places = [(str(file), 14), (str(file), 19), (str(file), 17), (str(file), 22)]
    listed = listings_of(places)
    assert [it.title.partition(" · ")[2] for it in listed] == [
        "Outer.method",
        "Outer.method.inner",
        "broken_later",
    ]
    assert [number for number, _ in listed[0].lines] == [9, 14, 15, 16, 17, 18, 19]
    lines = SOURCE.split("\n")
    for listing in listed:
        assert all(plain(code) == lines[number - 1] for number, code in listing.lines)


def test_a_line_outside_every_function_is_listed_alone(tmp_path):
    file = tmp_path / "my.py"
    file.write_text(SOURCE)
    (listing,) = listings_of([(str(file), 3)])
    assert [(number, plain(code)) for number, code in listing.lines] == [(3, "y = 1")]


def test_files_that_are_gone_or_no_python_are_no_error(tmp_path):
    file = tmp_path / "not.py"
    file.write_text("def (:\n")
    assert listings_of([(str(tmp_path / "gone.py"), 1), (str(file), 99)]) == ()
    assert len(listings_of([(str(file), 1)])[0].lines) == 1


def test_markup_in_code_is_escaped():
    ((_, code),) = highlighted("x = '<script>'")
    assert "<script>" not in code
