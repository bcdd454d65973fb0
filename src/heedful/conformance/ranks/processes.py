"""Processes that form a gloo group: how they are started, and how each of them ends in time."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from heedful.conformance.calling.exceptions import describe_exception, raising_line
from heedful.conformance.ranks.run import UnfitLayoutError
from heedful.conformance.recording.location import location_of
from heedful.conformance.recording.source import SourceLine
from heedful.errors import HeedfulError
from heedful.observation.collectives import Collective

PATIENCE = 10.0
"""The seconds that a rank waits for another one in a collective."""

RUN_SECONDS = 20.0
"""The seconds that a run may take besides, once all ranks have started."""

START_SECONDS = 60.0
"""The seconds within which all ranks must have started."""

WAITING: re.Pattern[str] = re.compile(
    r"timed? ?out|connection (closed|reset|refused)|closed by peer|broken pipe|socket",
    re.IGNORECASE,
)
"""What an exception says that a rank raises because of another one."""

FRAME: re.Pattern[str] = re.compile(r'File "(.+)", line (\d+) in')
NOT_THEIRS: re.Pattern[str] = re.compile(
    r"[/\\](torch|heedful[/\\](conformance|observation)|multiprocessing)[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\][^/\\]+$|<"
)

Ending = Literal["raises", "ends", "hangs", "waits"]


@dataclass(frozen=True)
class Failure:
    """How the process of a rank ended without a result.

    Attributes:
        rank: The rank.
        ending: "raises" an exception, "ends" its process, "hangs", or "waits" for another rank in vain.
        cause: What it raised, its exit code, or the time.
        place: The line; None if it is unknown.
        own: Whether the exception is ours, not the target's.
        error: The exception, if it is for the user of the check.
        collectives: The calls of `torch.distributed` that the rank made.
    """

    rank: int
    ending: Ending
    cause: str
    place: SourceLine | None = None
    own: bool = False
    error: HeedfulError | None = None
    collectives: tuple[Collective, ...] = ()

    def __str__(self) -> str:
        at = f", at {location_of(self.place)}: {self.place.source}" if self.place else ""
        return f"rank {self.rank} {self.ending}{at} ({self.cause})"


Outcome = Any
"""What the function returned on a rank, or a `Failure`."""


def run_on_ranks(
    function: Callable[..., Any], ranks: int, *arguments: Any, patience: float = PATIENCE
) -> list[Outcome]:
    """Run a function of (rank, ranks, …) in processes that form a group, and return what it returns on each.

    Whatever the ranks do, all processes have ended when this returns: a rank waits for another one in a collective for
    `patience` seconds, and a run takes at most `RUN_SECONDS` more.

    Returns:
        For each rank the result, or a `Failure`.
    """
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(["heedful.conformance.ranks.rank"])
    with tempfile.TemporaryDirectory(prefix="heedful-ranks-") as folder:
        processes = [
            context.Process(
                target=_member, args=(function, rank, ranks, folder, patience, arguments)
            )
            for rank in range(ranks)
        ]
        try:
            for process in processes:
                process.start()
            return _awaited(processes, Path(folder), patience)
        finally:
            for process in processes:
                if process.pid is not None:
                    process.kill()
                    process.join()


def _awaited(processes: list[Any], folder: Path, patience: float) -> list[Outcome]:
    """Return the outcome of each process, or its failure if it has ended or the time is up."""
    started = time.monotonic()
    everybody: float | None = None
    files = [folder / f"outcome.{rank}" for rank in range(len(processes))]
    while True:
        now = time.monotonic()
        arrived = all((folder / f"ready.{rank}").exists() for rank in range(len(processes)))
        everybody = now if everybody is None and arrived else everybody
        late = (
            now - started > START_SECONDS
            if everybody is None
            else now - everybody > patience + RUN_SECONDS
        )
        pending = [
            rank
            for rank, file in enumerate(files)
            if not file.exists() and processes[rank].is_alive()
        ]
        if late or not pending:
            return [
                _outcome(rank, files[rank], process, folder)
                for rank, process in enumerate(processes)
            ]
        time.sleep(0.01)


def _outcome(rank: int, file: Path, process: Any, folder: Path) -> Outcome:
    calls = _calls(rank, folder)
    if file.exists():
        outcome = torch.load(file, weights_only=False)
        return replace(outcome, collectives=calls) if isinstance(outcome, Failure) else outcome
    if process.exitcode is not None:
        cause = f"its process ended with exit code {process.exitcode}"
        last = _line_of(calls[-1]) if calls else None
        return Failure(
            rank, "ends", f"{cause}, after this line" if last else cause, last, collectives=calls
        )
    place = _standing(rank, folder)
    return Failure(rank, "hangs", "it did not finish in time", place, collectives=calls)


def _standing(rank: int, folder: Path) -> SourceLine | None:
    """Return the line of the target at which a process stood when its time was nearly up."""
    with contextlib.suppress(OSError):
        for file, line in FRAME.findall((folder / f"stack.{rank}").read_text(errors="replace")):
            if not NOT_THEIRS.search(file):
                return SourceLine.at(file, int(line))
    return None


class CallLog:
    """The calls of `torch.distributed` that this process makes, also in a file, should the process end.

    Args:
        file: The file; None if there is none.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.calls: list[Collective] = []
        self._file = file

    def add(self, call: Collective) -> None:
        self.calls.append(call)
        if self._file is not None:
            with self._file.open("ab") as log:
                pickle.dump(call, log)


log: CallLog = CallLog()
"""The log of this process."""


def _line_of(call: Collective) -> SourceLine | None:
    if call.file is None or call.line is None:
        return None
    return SourceLine(call.file, call.line, call.source)


def _calls(rank: int, folder: Path) -> tuple[Collective, ...]:
    """Return the calls of a rank's process, as far as it has written them."""
    calls: list[Collective] = []
    with (
        contextlib.suppress(OSError, EOFError, pickle.UnpicklingError),
        (folder / f"calls.{rank}").open("rb") as file,
    ):
        while True:
            calls.append(pickle.load(file))
    return tuple(calls)


def _member(
    function: Callable[..., Any],
    rank: int,
    ranks: int,
    folder: str,
    patience: float,
    arguments: tuple[Any, ...],
) -> None:
    """Run the function in this process, and write the outcome to a file."""
    global log
    log = CallLog(Path(folder, f"calls.{rank}"))
    warnings.simplefilter("ignore")  # the target's do not concern the check
    torch.set_num_threads(1)
    stack = Path(folder, f"stack.{rank}").open("w")  # noqa: SIM115 - it stays open until the process ends
    Path(folder, f"ready.{rank}").touch()
    while not all(Path(folder, f"ready.{other}").exists() for other in range(ranks)):
        time.sleep(0.01)
    faulthandler.dump_traceback_later(patience + RUN_SECONDS - 1.0, file=stack)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=patience),
        )
        outcome = function(rank, ranks, *arguments)
    except BaseException as error:  # noqa: BLE001 - a target may raise anything
        outcome = _failure(rank, error)
    part = Path(folder, f"part.{rank}")
    torch.save(outcome, part)
    part.replace(Path(folder, f"outcome.{rank}"))
    if not isinstance(outcome, Failure):
        time.sleep(patience + RUN_SECONDS)  # its end would be taken for the cause of what others do
    os._exit(0)


def _failure(rank: int, error: BaseException) -> Failure:
    cause = describe_exception(error)
    own = isinstance(error, UnfitLayoutError | HeedfulError)
    waits = isinstance(error, RuntimeError) and WAITING.search(cause) is not None
    told = error if isinstance(error, HeedfulError) else None
    ending: Ending = "waits" if waits and not own else "raises"
    return Failure(rank, ending, cause, raising_line(error), own, told)


def blamed(failures: Sequence[Failure]) -> Failure:
    """Return the failure that caused the others: an end, an exception or a hang before those who waited in vain."""
    order = ("ends", "raises", "hangs", "waits")
    return min(failures, key=lambda it: order.index(it.ending))
