"""Workers: contenders in processes of their own.

Some frameworks have threads that would compete with torch's, and memory can be measured only in a fresh process.
`Worker` is the parent's side. Run as a module, this file is the child's side. They exchange pickles on stdin and
stdout.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from heedful.bench.workload import AttentionWorkload, make_inputs
from heedful.errors import HeedfulError
from heedful.timing import time_runs

LOOK_SECONDS: float = (
    0.001  # the time in which a process shows whether its threads wait in a busy loop
)
MAX_SETTLE_SECONDS: float = 0.5
WARM_UP_TOKENS: int = 16
ISA_LIMITS: tuple[str, ...] = ("HEEDFUL_ISA", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
"""The environment variables that limit our kernel, PyTorch's and those of oneDNN; MKL's takes capital letters."""


class WorkerError(HeedfulError):
    """A worker's process has ended. The message contains the last line that it printed."""


class Worker:
    """A contender in a process of its own, which ends with the context.

    Args:
        name: A name in `peers.PEERS` or `peers.OURS`.
        workload: What the contender computes.
        isa: The instruction set that our kernel and PyTorch are limited to in the process. "": none.

    Raises:
        WorkerError: The contender cannot be prepared.
    """

    name: str

    def __init__(self, name: str, workload: AttentionWorkload, isa: str = "") -> None:
        threads = str(torch.get_num_threads())
        environment = os.environ | {
            "OMP_NUM_THREADS": threads,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        # Return large blocks to the system as soon as they are freed. Otherwise an earlier peak would hide a later one.
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
        if isa:
            environment |= dict.fromkeys(ISA_LIMITS, isa) | {"MKL_ENABLE_INSTRUCTIONS": isa.upper()}
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "heedful.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
        )
        try:
            self._request("prepare", name, workload, torch.get_num_threads())
        except BaseException:
            self.close()
            raise

    def results(self) -> tuple[Tensor, ...]:
        """Run the contender and return its results."""
        return self._request("results")

    def seconds(self, repeats: int = 1) -> float:
        """Run the contender `repeats` times in a row and return the mean seconds of one run."""
        settle()
        return self._request("seconds", repeats)

    def memory(self) -> int:
        """Run the contender and return by how many bytes the peak of resident memory rises."""
        return self._request("memory")

    def _request(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            code = self._process.wait()
            self._stderr.seek(0)
            lines = self._stderr.read().decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"exit code {code}"
            raise WorkerError(f"{self.name} failed in a process of its own: {reason}") from error

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()


def settle() -> None:
    """Wait until this process's threads sleep: after a run they wait for the next one in a busy loop, 10 ms and more.

    Meanwhile they would take processors from the contender of another process.
    """
    end = time.perf_counter() + MAX_SETTLE_SECONDS
    while time.perf_counter() < end:
        used = time.process_time()
        time.sleep(LOOK_SECONDS)
        if time.process_time() - used < LOOK_SECONDS / 2:
            return


# --- the child's side --------------------------------------------------------------------------------


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Prepare the contender that the first request names, then answer requests until stdin is closed."""
    _, name, workload, threads = pickle.load(requests)
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):  # some frameworks start as many threads as there are cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    from heedful.bench.peers import OURS, PEERS

    peer = (PEERS | OURS)[name]
    contender = peer.prepare(make_inputs(workload))
    _send(None, answers)
    while True:
        try:
            request, *arguments = pickle.load(requests)
        except EOFError:
            return
        if request == "results":
            _send(tuple(t.detach() for t in contender.tensors(contender.run())), answers)
        elif request == "memory":
            # The first run loads libraries, whose memory does not belong to the call.
            small = replace(workload, Tq=WARM_UP_TOKENS, Tk=WARM_UP_TOKENS)
            peer.prepare(make_inputs(small)).run()
            _send(_peak_growth(contender.run), answers)
        else:
            seconds = time_runs(contender.run, *arguments)
            settle()
            _send(seconds, answers)


def _send(answer: Any, answers: BinaryIO) -> None:
    pickle.dump(answer, answers)
    answers.flush()


def _peak_growth(run: Callable[[], Any]) -> int:
    """Return by how many bytes the peak of resident memory exceeds the resident memory before the run (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    run()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert match is not None
    return int(match[1]) * 1024


def _main() -> None:
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # keeps what libraries print out of the stream of answers
        _serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    _main()
