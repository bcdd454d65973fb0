"""The progress bar on stderr."""

import io
import sys
import threading

from heedful import screen


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_shows_each_stage_without_a_thread_that_would_disturb_timings(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    threads = threading.active_count()
    with screen.progress(2) as announce:
        announce("first [stage]")
        assert threading.active_count() == threads
        assert "1/2" in stream.getvalue()
        assert "first [stage]" in stream.getvalue()
        announce("second")
        assert "2/2" in stream.getvalue()


def test_progress_prints_nothing_without_a_terminal(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with screen.progress(1) as announce:
        announce("only stage")
    assert stream.getvalue() == ""


def test_control_characters_are_shown_as_escapes():
    assert (
        screen.visible("é “x” 猫 \x1b[2J\n\x9b\u202e\x00")
        == "é “x” 猫 \\x1b[2J\\n\\x9b\\u202e\\x00"
    )
    assert screen.without_controls("é\u200d\n\t\x1b[2J\r\x9b") == "é\u200d\n\t\\x1b[2J\\r\\x9b"
