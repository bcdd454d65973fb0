"""A description of this installation: versions, threads, kernels, instruction sets."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TextIO

import torch

from heedful.dispatch import explain
from heedful.kernels.native import library
from heedful.screen import aligned


@dataclass(frozen=True)
class Info:
    """A description of this installation, as `heedful info` prints it.

    Attributes:
        versions: the versions of heedful, Python and torch.
        processor: the machine's architecture, and the instruction set that torch's own kernels use.
        threads: the number of threads of torch; our kernels use as many.
        kernels: the kernel for attention on CPUs, for each dtype, with no options.
        isa: the instruction set that the native kernel uses; None if it cannot be used.
        isas: the instruction sets that both library and machine have, the best last; empty if it cannot be used.
        missing: why the native kernel cannot be used; None if it can.
    """

    versions: dict[str, str]
    processor: str
    threads: int
    kernels: dict[str, str]
    isa: str | None
    isas: tuple[str, ...]
    missing: str | None

    def __str__(self) -> str:
        return self.as_text()

    def as_text(self, stream: TextIO | None = None) -> str:
        """Return the description as a table, with long texts folded to the columns of a stream if there is one."""
        native = f"{self.isa}, of {', '.join(self.isas)}; set HEEDFUL_ISA to choose"
        rows = {
            **self.versions,
            "processor": self.processor,
            "threads": str(self.threads),
            "kernels": ", ".join(f"{dtype} {kernel}" for dtype, kernel in self.kernels.items()),
            "native": f"cannot be used: {self.missing}" if self.missing else native,
        }
        return aligned(rows.items(), stream)


def info() -> Info:
    """Return a description of this installation. Nothing is computed.

    Examples:
        >>> sorted(info().versions)
        ['heedful', 'python', 'torch']
    """
    return Info(
        versions={
            "heedful": version("heedful"),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        processor=f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()} in torch",
        threads=torch.get_num_threads(),
        kernels={
            str(dtype).removeprefix("torch."): explain(
                *torch.empty(3, 1, 1, 1, 1, dtype=dtype)
            ).kernel
            for dtype in (torch.float32, torch.bfloat16, torch.float16)
        },
        isa=library.isa,
        isas=() if library.missing else tuple(library.isas()),
        missing=library.missing,
    )
