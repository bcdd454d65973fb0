"""What this machine could do at most on torch's threads, by probes of the native library."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from heedful.bench.measuring import Timed
from heedful.kernels.native import library

PROBE_SECONDS = 0.03
READ_BYTES = 256 * 2**20  # well beyond the caches
PROBES_TAKEN = 5


@dataclass(frozen=True)
class Peak:
    """A limit of the machine.

    Attributes:
        name: what requirements call it.
        what: in words.
        unit: what is counted per second.
        timed: the probe: seconds for one unit, whatever the number of repeats.
    """

    name: str
    what: str
    unit: str
    timed: Timed


def available(read_bytes: int = READ_BYTES) -> dict[str, Peak]:
    """The peaks that can be measured here; none without the native library."""
    if library.missing is not None:
        return {}
    peaks = [
        Peak("fma", "fp32 multiply-add", "FLOP", _operations("heedful_peak_fma")),
        Peak("read", "reading memory in a stream", "B", _read(read_bytes)),
    ]
    if _probe("heedful_peak_bf16")(0.001) > 0:
        bf16 = Peak("bf16", "bf16 dot product", "FLOP", _operations("heedful_peak_bf16"))
        peaks.insert(1, bf16)
    return {peak.name: peak for peak in peaks}


def measure(peaks: dict[str, Peak]) -> dict[str, float]:
    """The best of a few probes of each, in units per second."""
    return {
        name: 1 / min(peak.timed(1) for _ in range(PROBES_TAKEN)) for name, peak in peaks.items()
    }


@cache
def _probe(name: str) -> Callable[[float], float]:
    function = library.library[name]
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_double, ctypes.c_void_p, ctypes.c_int64]
    return lambda seconds: function(seconds, library.parallel_for, torch.get_num_threads())


def _operations(name: str) -> Timed:
    """Seconds of one floating-point operation."""
    return lambda repeats: 1 / _probe(name)(PROBE_SECONDS)


def _read(bytes_read: int) -> Timed:
    """Seconds of reading one byte of so many."""
    function = library.library.heedful_stream_read
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    buffer: Tensor = torch.ones(bytes_read // 4, dtype=torch.int32)  # written, so that it is there

    def timed(repeats: int) -> float:
        start = time.perf_counter()
        function(buffer.data_ptr(), bytes_read, library.parallel_for)
        return (time.perf_counter() - start) / bytes_read

    return timed
