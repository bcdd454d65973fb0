"""Nothing of what a check does is left behind, and nothing takes for ever."""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import threading
import warnings
from collections.abc import Iterator

import numpy
import torch


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Random states and torch's settings are afterwards as before; what a target prints goes to stderr.

    Its warnings are not shown: they are not about what is asked.
    """
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    dtype, threads, grad = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
    )
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    precision, anomaly = torch.get_float32_matmul_precision(), torch.is_anomaly_enabled()
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),
            torch.enable_grad(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        torch.set_rng_state(states[2])
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_float32_matmul_precision(precision)
        torch.autograd.set_detect_anomaly(anomaly)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block once the time is up, at its next Python instruction, in any thread."""
    thread, over, lock = threading.get_ident(), False, threading.Lock()

    def stop() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(TimeoutError)
                )

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
        timer.cancel()
