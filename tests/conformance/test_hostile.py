"""Hostile targets: `heedful check` answers each with the right exit code, and no escape reaches the terminal."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.hostile import ENDLESS, HOSTILE, SOUND, Hostile
from heedful.cli import app
from heedful.conformance import own_process

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the targets use Linux")


def answer_of(hostile: Hostile, folder: Path, *options: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of the command."""
    file = folder / "hostile.py"
    source = hostile.source.encode() if isinstance(hostile.source, str) else hostile.source
    file.write_bytes(source)
    result = CliRunner().invoke(app, ["check", f"{file}:Attention", *options])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: ascii(hostile.name))
def test_a_hostile_target_gets_the_answer_of_the_checker(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr(own_process, "SECONDS", 20.0)
    if hostile in ENDLESS:
        monkeypatch.setattr(own_process, "SECONDS", 3.0)
    code, output, errors = answer_of(hostile, tmp_path, "--format", "json")
    assert code == hostile.code, output + errors
    assert "Traceback" not in errors
    assert not CONTROL.search(output + errors)
    if code == 2:
        assert output == ""
        assert hostile.text in errors
        assert len(errors.splitlines()[-1]) < 3000
    else:
        report = json.loads(output)
        assert report["ok"] is (code == SOUND)
        assert hostile.text in str(report).replace(r"\\", "\\")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda it: it.name)
def test_a_signal_that_ends_the_command_ends_the_process_of_the_target(number, tmp_path):
    file, note = tmp_path / "endless.py", tmp_path / "process"
    file.write_text(ENDLESS_WITH_CHILD.format(note=str(note)))
    command = [sys.executable, "-m", "heedful", "check", f"{file}:Attention"]
    # A command that is started by nohup ignores SIGHUP, and these tests may be started so, too.
    default = partial(signal.signal, number, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=default)
    until = time.monotonic() + 60
    while not (note.exists() and note.read_text().count(" ") == 1) and time.monotonic() < until:
        time.sleep(0.05)
    running = [int(text) for text in note.read_text().split()]
    assert all(is_running(it) for it in running)
    process.send_signal(number)
    assert process.wait(10) == 128 + number
    until = time.monotonic() + 5
    while any(is_running(it) for it in running) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [it for it in running if is_running(it)]


ENDLESS_WITH_CHILD = """
import os, subprocess, time
from pathlib import Path
child = subprocess.Popen(["sleep", "60"])
Path({note!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
while True:
    time.sleep(1)
"""


def is_running(process: int) -> bool:
    """Check whether a process is there, and no zombie that waits for its parent."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
