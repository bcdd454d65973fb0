"""Files and folders appear complete or not at all, and never through a link."""

import os
import signal
import stat
import subprocess
import sys

import pytest

from heedful.errors import ArgumentError
from heedful.writing import new_folder, reserved


def test_a_reserved_file_appears_at_the_end(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("before")
    with reserved(path, "--html") as write:
        write("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError])
def test_an_interruption_leaves_no_file(tmp_path, interruption):
    def write_half() -> None:
        with reserved(tmp_path / "page.html", "--html") as write:
            write("half")
            raise interruption

    with pytest.raises(interruption):
        write_half()
    assert list(tmp_path.iterdir()) == []


ENDED_WHILE_WRITING = """
import os, signal
from pathlib import Path
from heedful.writing import new_folder, reserved, reserved_file
signal.signal({number}, signal.SIG_DFL)  # nohup, which may have started these tests, ignores SIGHUP
with {function}(Path({name!r}), "--out"):
    assert any(path.name.startswith(".{name}.") for path in Path().iterdir())
    os.kill(os.getpid(), {number})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda it: it.name)
@pytest.mark.parametrize(
    ("function", "name"), [("reserved", "page"), ("reserved_file", "page"), ("new_folder", "run")]
)
def test_a_signal_that_ends_the_process_leaves_no_file(tmp_path, function, name, number):
    (tmp_path / "page").write_text("before")
    program = ENDED_WHILE_WRITING.format(number=int(number), function=function, name=name)
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (128 + number, b"")
    assert [entry.name for entry in tmp_path.iterdir()] == ["page"]
    assert (tmp_path / "page").read_text() == "before"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_refused_and_what_it_points_to_stays(tmp_path, exists):
    target, link = tmp_path / "real.html", tmp_path / "link.html"
    if exists:
        target.write_text("before")
    link.symlink_to(target)
    with (
        pytest.raises(ArgumentError, match=r"--html: .*a symbolic link to .*real\.html"),
        reserved(link, "--html"),
    ):
        pytest.fail("the work began")
    assert link.is_symlink()
    assert not exists or target.read_text() == "before"
    assert target.exists() == exists


def recorded(monkeypatch) -> list[str]:
    """Record in which order files and folders are synchronized with the disk and renamed."""
    events, fsync, rename = [], os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noted_rename(source, target) -> None:
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_rename)
    monkeypatch.setattr(os, "rename", noted_rename)
    return events


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_folder_afterwards(
    tmp_path, monkeypatch
):
    events = recorded(monkeypatch)
    with reserved(tmp_path / "page.html", "--html") as write:
        write("page")
    assert events == ["file", "rename", "folder"]


def test_a_folder_is_on_the_disk_before_it_has_its_name_and_its_parent_afterwards(
    tmp_path, monkeypatch
):
    events = recorded(monkeypatch)
    with new_folder(tmp_path / "run", "--out") as folder:
        (folder / "file").write_text("content")
    assert events == ["folder", "rename", "folder"]


def test_of_two_folders_of_one_name_the_second_is_refused(tmp_path):
    def write_two() -> None:
        with new_folder(tmp_path / "run", "--out") as second:
            (second / "file").write_text("second")
            with new_folder(tmp_path / "run", "--out") as first:
                (first / "file").write_text("first")

    with pytest.raises(ArgumentError, match=r"--out: .*nothing was overwritten"):
        write_two()
    assert (tmp_path / "run" / "file").read_text() == "first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["/dev/null", "missing/page.html", "."])
def test_an_unwritable_file_is_found_before_the_work_begins(tmp_path, name):
    with pytest.raises(ArgumentError, match="--html"), reserved(tmp_path / name, "--html"):
        pytest.fail("the work began")
