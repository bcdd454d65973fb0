"""Searches for attention problems that heedful gets wrong: it draws one from each seed and compares with an oracle.

PYTHONPATH=tests .venv/bin/python -m fuzz.run                                # make fuzz: goes on where it stopped
PYTHONPATH=tests .venv/bin/python -m fuzz.run --first 0 --last 999           # these seeds
PYTHONPATH=tests .venv/bin/python -m fuzz.run --first 7 --last 7 --isas avx2 # one problem again, in words

Problems run in a child process, so that a crash ends only the child and is reported with its seed.
"""

import argparse
import faulthandler
import math
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fuzz import comparison, problems, summaries
from heedful.kernels.native import library

POSITION = Path("build/fuzz/position")
# A child that needs longer on one problem prints where it is and ends. On a busy machine it may wait for a processor.
PROCESSOR_SECONDS, SECONDS = 60, 900
FOREVER = 2**62


@dataclass
class Progress:
    """How far a run has come: the next seed, and the failures so far, each with its seed."""

    next_seed: int
    failures: list[str]


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--first", type=int, help="the first seed; default: go on after the last")
    parser.add_argument("--last", type=int, default=FOREVER, help="the last seed")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--isas", default=",".join(library.isas()))
    parser.add_argument("--position", type=Path, default=POSITION, help="a file with the next seed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    isas = arguments.isas.split(",")
    if arguments.child:
        work(arguments.first, arguments.last, isas)
        return 0

    position = arguments.position if arguments.first is None else None
    first = read_position(position) if position else arguments.first
    if first == arguments.last:
        print(f"seed {first}: {problems.draw(first)}")
    began = time.monotonic()
    progress = Progress(first, [])
    try:
        fuzz(progress, arguments.last, isas, began + 60 * arguments.minutes, position)
    except KeyboardInterrupt:
        print("interrupted")
    minutes = (time.monotonic() - began) / 60
    count = progress.next_seed - first
    print(
        f"{count} problems (seeds {first} to {progress.next_seed - 1}) on {arguments.isas} "
        f"in {minutes:.1f} minutes: {len(progress.failures)} failures"
    )
    return 1 if progress.failures else 0


def fuzz(
    progress: Progress, last: int, isas: list[str], deadline: float, position: Path | None
) -> None:
    """Run seeds up to the last or until the deadline, in one child after another, each until it crashes."""
    while progress.next_seed <= last and time.monotonic() < deadline:
        seeds = ("--first", str(progress.next_seed), "--last", str(last))
        child = [sys.executable, "-m", "fuzz.run", "--child", *seeds, "--isas", ",".join(isas)]
        watch(child, progress, deadline, position)


def watch(
    command: list[str], progress: Progress, deadline: float = math.inf, position: Path | None = None
) -> None:
    """Run a child that prints what `work` prints, until it ends or the deadline; print and keep its failures."""
    seed, isa = progress.next_seed, ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                word, _, rest = line.rstrip("\n").partition(" ")
                if word == "at":
                    number, _, isa = rest.partition(" ")
                    seed = int(number)
                elif word == "fault":
                    _report(progress, seed, isa, rest)
                elif word == "done":
                    advance(progress, seed, position)
                    if time.monotonic() >= deadline:
                        return
        finally:
            child.kill()
            status = child.wait()
    if not isa:
        raise RuntimeError(f"the child ended with {_describe(status)} before its first problem")
    if progress.next_seed <= seed:
        _report(progress, seed, isa, f"the process ended with {_describe(status)}")
        advance(progress, seed, position)


def _report(progress: Progress, seed: int, isa: str, fault: str) -> None:
    again = (
        f"PYTHONPATH=tests .venv/bin/python -m fuzz.run --first {seed} --last {seed} --isas {isa}"
    )
    progress.failures.append(f"seed {seed} on {isa}: {fault}; again: {again}")
    print(progress.failures[-1], flush=True)


def advance(progress: Progress, seed: int, position: Path | None) -> None:
    """Note that a seed is done, also in the file of the position."""
    progress.next_seed = seed + 1
    if position:
        position.parent.mkdir(parents=True, exist_ok=True)
        position.write_text(f"{seed + 1}\n", encoding="utf-8")


def read_position(position: Path) -> int:
    """Return the next seed; 0 at the first time."""
    return int(position.read_text(encoding="utf-8")) if position.exists() else 0


def _describe(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"


def work(first: int, last: int, isas: list[str]) -> None:
    """Run seeds in this process, and print what happens in lines that `watch` understands."""
    faulthandler.register(signal.SIGPROF, chain=True)
    for seed in range(first, last + 1):
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print("at", seed, isas[0], flush=True)
        problem = problems.draw(seed)
        expected = comparison.exact(problem)
        request = summaries.draw(problem)
        statistics = summaries.exact(problem, request)
        for isa in isas:
            print("at", seed, isa, flush=True)
            library.use_isa(isa)
            faults = comparison.faults(problem, expected)
            faults += summaries.faults(problem, request, statistics)
            if faults:
                print("fault", "; ".join(faults), flush=True)
        print("done", seed, flush=True)


if __name__ == "__main__":
    sys.exit(main())
