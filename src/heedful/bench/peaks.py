"""Peaks: the maximum rates of this machine on torch's threads, measured by the native library."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from heedful.kernels.native import library
from heedful.timing import TimedRun

PROBE_SECONDS: float = 0.03
PROBE_COUNT: int = 5
READ_BYTES: int = 256 * 2**20  # far more than the caches hold


DESCRIPTIONS: dict[str, str] = {
    "fma": "fp32 multiply-add",
    "bf16": "bf16 dot product",
    "read": "memory read in a stream",
}
UNITS: dict[str, str] = {"fma": "FLOP/s", "bf16": "FLOP/s", "read": "B/s"}


def available_peaks(read_bytes: int = READ_BYTES) -> dict[str, TimedRun]:
    """Return a probe of each peak that can be measured here. Without the native library there are none.

    Args:
        read_bytes: The size of the buffer that the probe of "read" reads.

    Returns:
        Probes by the names of their peaks. A probe ignores the number of repeats and returns the seconds for one
        unit: one floating-point operation or one byte.
    """
    if library.missing is not None:
        return {}
    probes = {"fma": _operations("heedful_peak_fma")}
    if _probe("heedful_peak_bf16")(0.001) > 0:
        probes["bf16"] = _operations("heedful_peak_bf16")
    probes["read"] = _read(read_bytes)
    return probes


def measure_peaks(probes: dict[str, TimedRun]) -> dict[str, float]:
    """Return the highest of a few measurements of each peak, in units per second."""
    return {name: 1 / min(probe(1) for _ in range(PROBE_COUNT)) for name, probe in probes.items()}


@cache
def _probe(name: str) -> Callable[[float], float]:
    """Return the library's function that computes for so many seconds and returns operations per second."""
    function = library.library[name]
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_double, ctypes.c_void_p, ctypes.c_int64]
    return lambda seconds: function(seconds, library.parallel_for, torch.get_num_threads())


def _operations(name: str) -> TimedRun:
    """Return a function that measures the seconds of one floating-point operation."""
    return lambda repeats: 1 / _probe(name)(PROBE_SECONDS)


def _read(bytes_read: int) -> TimedRun:
    """Return a function that reads a buffer and measures the seconds of one byte."""
    function = library.library.heedful_stream_read
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    # Writing to the buffer makes the system provide its pages.
    buffer: Tensor = torch.ones(bytes_read // 4, dtype=torch.int32)

    def timed_run(repeats: int) -> float:
        start = time.perf_counter()
        function(buffer.data_ptr(), bytes_read, library.parallel_for)
        return (time.perf_counter() - start) / bytes_read

    return timed_run
