"""Hostile targets: `heedful check` answers each with the right exit code, and no escape reaches the terminal."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from conformance.hostile import ENDLESS, HOSTILE, SOUND, Hostile
from heedful.cli import app
from heedful.conformance import own_process, worker

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
CONTEXT = multiprocessing.get_context("forkserver") if sys.platform == "linux" else None

if CONTEXT is not None:
    CONTEXT.set_forkserver_preload(["heedful.conformance.worker"])

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the targets use Linux")


def enter(folder: str, output: str) -> None:
    """Be the process of a target: a session of its own, whose output goes to a file."""
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    sys.argv = ["worker", folder]
    worker.main()


def run_preloaded(
    command: list[str], seconds: float, errors: IO[str] | None, folder: Path | None
) -> int | None:
    """Do what `own_process._run` does in a process that has imported torch already, which takes a tenth of the time."""
    assert isinstance(CONTEXT, ForkServerContext)
    output = Path(command[-1], "output")
    process = CONTEXT.Process(target=enter, args=(command[-1], str(output)))
    process.start()
    process.join(seconds)
    code = process.exitcode
    end_group(process)
    own_process._copy(output.open("rb"), errors)
    return code


def end_group(process: BaseProcess) -> None:
    try:
        os.killpg(process.pid or 0, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.join()


def answer_of(hostile: Hostile, folder: Path, *options: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of the command."""
    file = folder / "hostile.py"
    source = hostile.source.encode() if isinstance(hostile.source, str) else hostile.source
    file.write_bytes(source)
    result = CliRunner().invoke(app, ["check", f"{file}:Attention", *options])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: ascii(hostile.name))
def test_a_hostile_target_gets_the_answer_of_the_checker(hostile, tmp_path, monkeypatch):
    monkeypatch.setattr(own_process, "_run", run_preloaded)
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
