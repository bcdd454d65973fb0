"""Context managers that keep runs of a target comparable, and that leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator

import numpy
import torch
from torch import Tensor, nn
from torch._tensor_str import get_printoptions

AUTOCAST_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Give every run the same random numbers, so that two runs differ by their inputs alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def restored(module: nn.Module | None) -> Iterator[None]:
    """Restore a module's attributes and buffers afterwards: empty caches, unchanged counters.

    A tensor that was written to is replaced by a copy of its former values, because a backward pass may still need the
    tensor itself.
    """
    parts = [] if module is None else list(module.modules())
    holders = [holder for part in parts for holder in (vars(part), part._buffers)]
    contents = [dict(holder) for holder in holders]
    tensors = [value for held in contents for value in held.values() if isinstance(value, Tensor)]
    saved = {id(tensor): (tensor._version, tensor.detach().clone()) for tensor in tensors}
    try:
        yield
    finally:
        for holder, held in zip(holders, contents, strict=True):
            holder.clear()
            for name, value in held.items():
                written = isinstance(value, Tensor) and value._version != saved[id(value)][0]
                holder[name] = saved[id(value)][1] if written else value


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restore random states, torch's settings and the working directory afterwards; print to stderr meanwhile.

    Warnings are hidden, because the target's warnings do not concern the check.
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
    device, print_options = _default_device(), get_printoptions()
    autocast = {kind: _autocast_state(kind) for kind in AUTOCAST_DEVICES}
    cache_enabled, folder = torch.is_autocast_cache_enabled(), _working_directory()
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
        if _default_device() != device:
            torch.set_default_device(device)
        torch.set_printoptions(**print_options)
        for kind, (enabled, autocast_dtype) in autocast.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, autocast_dtype)
        torch.set_autocast_cache_enabled(cache_enabled)
        if folder is not None and folder != _working_directory():
            os.chdir(folder)


def _default_device() -> torch.device | None:
    """Return what `torch.set_default_device` has set, or None."""
    return getattr(getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), "device", None)


def _autocast_state(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _working_directory() -> str | None:
    """Return the working directory; None if it no longer exists."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError at the block's next Python instruction once the time is up; works in any thread."""
    thread, done, lock = threading.get_ident(), False, threading.Lock()

    def stop() -> None:
        with lock:
            if not done:
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
            done = True
        timer.cancel()
