"""Maps of the terminal use the width there is, and can be read with 16 colors, without colors, and in ASCII."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import torch
from rich.style import Style

from heedful.drawing import DIVERGING, SEQUENTIAL, ink_on
from heedful.screen import Abilities, has_unicode
from heedful.tour import inputs, ladder
from heedful.tour.report.maps import MAX_MAP_ROWS, matrices
from heedful.tour.report.matrices import LabelledMatrix
from heedful.tour.report.text import as_text
from heedful.tour.run import run_tour

WORDS = ("Your", "journey", "starts", "with", "one", "step")
SIX = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
LARGE = torch.randn(100, 80, generator=torch.Generator().manual_seed(0))


def labelled(tensor, words=None):
    rows, columns = (tuple(map(str, range(size))) for size in tensor.shape[-2:])
    return LabelledMatrix(tensor, words or rows, words or columns)


def drawn(tensor, width, colors=0, unicode=True, words=None):
    return matrices(labelled(tensor, words), Abilities(width, colors, unicode))


def widths(text):
    return [line.cell_len for line in text.split("\n")]


@pytest.mark.parametrize("width", [10, 20, 34, 60, 100, 200])
@pytest.mark.parametrize("tensor", [SIX, LARGE, LARGE[:, :3], LARGE[:3], LARGE.reshape(2, 50, 80)])
def test_no_line_is_wider_than_the_screen(tensor, width):
    text = drawn(tensor, width)
    notes = [
        line for line in text.split("\n") if "entries" in line.plain or "quarter" in line.plain
    ]
    lines = [line for line in text.split("\n") if line not in notes]
    assert max(line.cell_len for line in lines) <= width


def test_all_columns_are_numbers_if_they_fit():
    text = drawn(SIX, 60, words=WORDS).plain
    assert all(f"{entry:.4f}" in text for entry in SIX.flatten().tolist())
    assert all(word in text for word in WORDS)
    assert "cells" not in text


def test_fewer_decimals_come_before_shades():
    assert re.search(r" 0\.\d\d ", drawn(SIX, 40).plain)
    assert not re.search(r"0\.\d\d\d", drawn(SIX, 40).plain)
    assert "█" in drawn(SIX, 20).plain


def test_a_wider_screen_shows_more_cells():
    shown = [
        int(re.search(r"as \d+ × (\d+) cells", drawn(LARGE, width).plain)[1])
        for width in (20, 40, 60)
    ]
    assert shown == [19, 39, 59]
    assert "100 × 80 entries, as 32 × 80 cells" in drawn(LARGE, 120).plain
    assert max(widths(drawn(LARGE, 180))) == 160  # of two characters each


def test_a_map_has_the_means_of_its_cells():
    halves = torch.zeros(64, 64)
    halves[32:] = 1.0
    lines = drawn(halves, 34, words=tuple("x" * 64)).plain.splitlines()
    assert lines[0].strip() == ""
    assert set(lines[MAX_MAP_ROWS - 1].strip()) == {"█"}
    assert "mean 0.5" in lines[MAX_MAP_ROWS]


def test_signs_can_be_told_apart_without_colors():
    signed = torch.tensor([[1.0, -1.0] * 30] * 40)
    for unicode, pair in ((True, "█≡"), (False, "#%")):
        lines = drawn(signed, 70, unicode=unicode).plain.splitlines()
        assert pair in lines[0]
        assert "below 0" in lines[-1]


def test_ascii_has_nothing_else():
    masked = torch.full((40, 40), -torch.inf).triu(1) + LARGE[:40, :40]
    text = drawn(masked, 60, unicode=False).plain.translate(str.maketrans("×−∞", "x-i"))
    assert text.isascii()
    assert drawn(masked[:4, :4], 60, unicode=False, words=("a" * 20,) * 4).plain.isascii()


# --- colors ------------------------------------------------------------------------------------------

LUMINANCE = {
    "black": 0.0,
    "cyan": 0.5,
    "yellow": 0.5,
    "blue": 0.07,
    "red": 0.1,
    "bright_white": 1.0,
}


@pytest.mark.parametrize("tensor", [SIX, SIX - 0.5])
def test_sixteen_colors_never_put_a_color_on_itself(tensor):
    styles = {span.style for span in drawn(tensor, 60, colors=16).spans} - {"dim", ""}
    assert len(styles) == (2 if (tensor >= 0).all() else 4)
    for style in styles:
        ink, ground = style.split(" on ")
        light, dark = sorted((LUMINANCE[ink], LUMINANCE[ground]), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 4


def test_a_map_of_sixteen_colors_has_characters():
    text = drawn(LARGE, 60, colors=16)
    assert set(text.plain) & set("░▒▓█")
    assert set(text.plain) & set("-~=≡")
    assert not any(" on " in str(span.style) for span in text.spans)


@pytest.mark.parametrize("stops", [SEQUENTIAL, DIVERGING])
def test_many_colors_have_ink_that_can_be_read(stops):
    def luminance(color):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for ground in stops:
        ink = ink_on(ground)
        light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 4


@pytest.mark.parametrize("tensor", [SIX, SIX - 0.5, LARGE])
@pytest.mark.parametrize("colors", [16, 256])
def test_every_style_is_one_that_rich_knows(tensor, colors):
    styles = {str(span.style) for span in drawn(tensor, 60, colors).spans}
    assert len(styles) > 2
    for style in styles:
        Style.parse(style)


# --- a terminal ---------------------------------------------------------------------------------------

PROGRAM = """
import sys, torch
from heedful.screen import Abilities, console_for, print_out, printed
from heedful.tour.report.maps import matrices
from heedful.tour.report.matrices import LabelledMatrix
console = console_for(sys.stdout, 200)
tensor = torch.linspace(-1, 1, 4096).reshape(64, 64).T
names = tuple(map(str, range(64)))
console.print(matrices(LabelledMatrix(tensor, names, names), Abilities.of(console, sys.stdout)))
print_out(printed(console))
"""


def in_terminal(width, **environment):
    """Return what the program writes to a pseudo-terminal of a width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    kept = {
        name: value
        for name, value in os.environ.items()
        if name
        not in (
            "COLUMNS",
            "LINES",
            "NO_COLOR",
            "FORCE_COLOR",
            "COLORTERM",
            "LC_ALL",
            "LANG",
            "TTY_COMPATIBLE",
        )
    }
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=child, stdout=child, env=kept | environment
    )
    os.close(child)
    written = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # the program has ended
            break
        if not piece:
            break
        written += piece
    os.close(parent)
    assert process.wait() == 0
    return written.decode()


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


@pytest.mark.parametrize(
    ("width", "environment"),
    [
        (40, {"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}),
        (90, {"TERM": "xterm", "LANG": "en_US.UTF-8"}),
        (160, {"TERM": "dumb", "LANG": "en_US.UTF-8"}),
        (70, {"TERM": "xterm-256color", "NO_COLOR": "1", "LANG": "en_US.UTF-8"}),
        (100, {"TERM": "dumb", "LANG": "C"}),
    ],
)
def test_a_terminal_shows_what_it_can(width, environment):
    written = in_terminal(width, **environment)
    lines = plain(written)
    cells = min(64, width - 1)
    if cells < 64:
        assert f"64 × 64 entries, as 32 × {cells} cells" in " ".join(lines)
    assert max(map(len, lines)) <= width
    assert any(len(line) > 0.6 * min(width, 128) for line in lines)
    has_grounds = "\x1b[" in written and re.search(r"\x1b\[[0-9;]*48;5;", written)
    assert bool(has_grounds) == (
        environment["TERM"] == "xterm-256color" and "NO_COLOR" not in environment
    )
    if not has_grounds:
        shades = "#" if environment["LANG"] == "C" else "█"
        assert any(shades * 2 in line for line in lines)
    if environment["LANG"] == "C":
        assert written.isascii()
    if environment["TERM"] == "xterm":
        assert not re.search(
            r"\x1b\[[0-9;]*(3[78];|47)", written
        )  # no colors beyond 16, no white ground


def test_what_is_piped_has_the_usual_width_and_no_colors():
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "30", "PYTHONIOENCODING": "latin-1"},
        encoding="latin-1",
    )
    assert "\x1b" not in result.stdout
    assert "64 x 64 entries, as 32 x 64 cells" in result.stdout
    assert "?" not in result.stdout


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [30, 60, 120, 240])
@pytest.mark.parametrize("term", ["xterm", "dumb", "xterm-256color"])
def test_the_tour_fits_a_terminal(monkeypatch, width, term):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", term)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    tour = run_tour(inputs.sentence(), ladder.choose_rungs("multi-head"))
    lines = plain(as_text(tour, Terminal(), None))
    assert max(map(len, lines)) <= width
    prose = [line for line in lines if line.endswith(".")]
    assert max(map(len, prose)) <= 100


@pytest.mark.parametrize(
    ("lang", "all_", "tty", "expected"),
    [
        ("C", "", True, False),
        ("C", "", False, True),
        ("C.UTF-8", "", True, True),
        ("en_US.UTF-8", "C", True, False),
        ("", "", True, True),
    ],
)
def test_the_locale_says_whether_there_is_unicode(monkeypatch, lang, all_, tty, expected):
    monkeypatch.setenv("LANG", lang)
    monkeypatch.setenv("LC_ALL", all_)
    assert has_unicode(Terminal() if tty else io.StringIO()) == expected
