"""All cases, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from heedful.bench import measuring, peaks
from heedful.bench.cases import Case
from heedful.bench.judging import MISSED, WRONG
from heedful.bench.running import Conditions, Found, run
from heedful.kernels.native import library

QUICK_BYTES = 2**20


@dataclass(frozen=True)
class Machine:
    """What the numbers belong to.

    Attributes:
        processor, cores: its model and how many cores this process may use.
        threads: how many torch computes with; so do the others.
        torch: its version.
        isa: the instruction set of our kernel; None without one.
        missing: why there is none.
    """

    processor: str
    cores: int
    threads: int
    torch: str
    isa: str | None
    missing: str | None


@dataclass(frozen=True)
class Report:
    """All that a bench found; `terminal`, `document` and `page` show it.

    Attributes:
        machine: what it was measured on.
        limits: the highest measured of each peak, in units per second.
        found: each case with what came of it.
        quick: whether the shapes were made small; then speed is not judged.
    """

    machine: Machine
    limits: dict[str, float]
    found: tuple[Found, ...]
    quick: bool

    @property
    def wrong(self) -> tuple[Found, ...]:
        return tuple(found for found in self.found if found.verdict == WRONG)

    @property
    def missed(self) -> tuple[Found, ...]:
        return tuple(found for found in self.found if found.verdict == MISSED)

    @property
    def left_out(self) -> dict[str, str]:
        """Who could not be compared at all for want of a package, and the command that changes that."""
        return {
            name: why
            for found in self.found
            for name, why in found.left_out.items()
            if "pip install" in why
        }


def take(
    cases: tuple[Case, ...],
    peers: tuple[str, ...],
    *,
    quick: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> Report:
    """Measure the machine, then every case.

    Args:
        cases: some of `cases.CASES`.
        peers: names of `peers.PEERS`, to be compared with where a case has them.
        quick: small shapes and few turns, to try the machinery.
        announce: told what begins.
    """
    announce("the machine's peaks")
    probes = peaks.available(QUICK_BYTES if quick else peaks.READ_BYTES)
    conditions = Conditions(
        peers=peers,
        budget=measuring.QUICK if quick else measuring.FULL,
        peaks=probes,
        limits=peaks.measure(probes),
        quick=quick,
    )
    found = []
    for case in cases:
        announce(case.name)
        found.append(run(case, conditions))
    return Report(machine(), _best(conditions.limits, found), tuple(found), quick)


def _best(limits: dict[str, float], found: list[Found]) -> dict[str, float]:
    """The peaks at their highest: those of the start, or what a probe reached in turns with a case."""
    timed = [case.times.seconds for case in found if case.times is not None]
    return {
        name: max([limit, *(1 / min(seconds[name]) for seconds in timed if name in seconds)])
        for name, limit in limits.items()
    }


def machine() -> Machine:
    """This one."""
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        processor=_processor(),
        cores=len(affinity(0)) if affinity else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        isa=library.isa,
        missing=library.missing,
    )


def _processor() -> str:
    """The model's name, where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    facts = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", text, re.M))
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    if "cpu family" not in facts:
        return facts["model name"]
    return f"{facts['model name']} (family {facts['cpu family']}, model {facts['model']})"
