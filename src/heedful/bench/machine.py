"""A description of the machine that the numbers were measured on."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from heedful.kernels.native import library


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        processor: The processor's model.
        cores: The number of cores that this process may use.
        threads: The number of threads that torch and all peers use.
        torch: The version of torch.
        isa: The instruction set of our kernel. None: there is no kernel.
        missing: The reason why there is no kernel, or None.
    """

    processor: str
    cores: int
    threads: int
    torch: str
    isa: str | None
    missing: str | None


def this_machine() -> Machine:
    """Return a description of this machine."""
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
    """Return the processor's model as precisely as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    facts = dict(re.findall(r"^(model name|cpu family|model)\s*: (.+)$", text, re.M))
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    if "cpu family" not in facts:
        return facts["model name"]
    return f"{facts['model name']} (family {facts['cpu family']}, model {facts['model']})"
