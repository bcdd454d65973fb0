"""A process of its own for a contender: for threads that would fight with torch's, and for clean memory.

`Worker` is the near side; run as a module, this file is the far one. They exchange pickles on stdin and stdout.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from heedful.bench.measuring import time_runs
from heedful.bench.settings import Setting, make
from heedful.errors import HeedfulError

SETTLE = 0.005  # seconds until the threads of the process that ran last have gone to sleep
WARM_UP = 16  # tokens


class WorkerError(HeedfulError):
    """The process of a contender ended; the text has the last that it said."""


class Worker:
    """A contender in a process of its own. A context manager: the process ends with it.

    Args:
        name: a name of `peers.PEERS` or `peers.OURS`.
        setting: what it computes.
        isa: what HEEDFUL_ISA is there; "": what it is here.
    """

    def __init__(self, name: str, setting: Setting, isa: str = "") -> None:
        threads = str(torch.get_num_threads())
        environment = os.environ | {
            "OMP_NUM_THREADS": threads,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        # Large blocks go back to the system as soon as they are freed, else a peak would hide behind an earlier one.
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
        if isa:
            environment["HEEDFUL_ISA"] = isa
        self.name = name
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "heedful.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
        )
        try:
            self._ask("prepare", name, setting, torch.get_num_threads())
        except BaseException:
            self.close()
            raise

    def results(self) -> tuple[Tensor, ...]:
        """What it computes."""
        return self._ask("results")

    def seconds(self, repeats: int = 1) -> float:
        """The time of one of so many runs, measured there."""
        time.sleep(SETTLE)
        taken = self._ask("seconds", repeats)
        time.sleep(SETTLE)
        return taken

    def memory(self) -> int:
        """Bytes that one run adds to what is resident, at most at a time."""
        return self._ask("memory")

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            code = self._process.wait()
            self._said.seek(0)
            last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise WorkerError(
                f"{self.name} failed in a process of its own: {last[0] if last else f'exit code {code}'}"
            ) from error

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._said.close()


# --- the far side ------------------------------------------------------------------------------------


def _answer(requests: BinaryIO, answers: BinaryIO) -> None:
    """Prepare what the first request names, then run it as often as asked."""
    _, name, setting, threads = pickle.load(requests)
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):  # some frameworks take as many threads as there are cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    from heedful.bench.peers import OURS, PEERS

    peer = (PEERS | OURS)[name]
    contender = peer.prepare(make(setting))
    _send(None, answers)
    while True:
        try:
            verb, *arguments = pickle.load(requests)
        except EOFError:
            return
        if verb == "results":
            _send(tuple(t.detach() for t in contender.tensors(contender.run())), answers)
        elif verb == "memory":
            small = replace(setting, Tq=WARM_UP, Tk=WARM_UP)
            peer.prepare(make(small)).run()  # what is loaded when first used is not its memory
            _send(_peak_growth(contender.run), answers)
        else:
            _send(time_runs(contender.run, *arguments), answers)


def _send(answer: Any, answers: BinaryIO) -> None:
    pickle.dump(answer, answers)
    answers.flush()


def _peak_growth(run: Any) -> int:
    """By how much the peak of resident memory rises over what is resident before (Linux's /proc)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = _status("VmRSS")
    run()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what libraries print must not get between the answers
        _answer(sys.stdin.buffer, answers)
