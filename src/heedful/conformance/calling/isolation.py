"""Context managers that keep runs of a target comparable, and that leave nothing behind."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial
from os import _exit, getpid  # bound here, because a target may replace them
from typing import Any, cast

import numpy
import torch
from torch import Tensor, nn
from torch._tensor_str import get_printoptions
from torch.utils.weak import WeakTensorKeyDictionary

from heedful.conformance.calling.limited import limited

AUTOCAST_DEVICES = ("cpu", "cuda")
COLLECTIONS = frozenset({dict, list, set})
COPIES: MutableMapping[Tensor, tuple[int, Tensor]] = WeakTensorKeyDictionary()
"""The last copy of each tensor that a module holds."""


@contextlib.contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Give every run the same random numbers, so that two runs differ by their inputs alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # that of other devices would take much longer
        yield


@contextlib.contextmanager
def as_default(dtype: torch.dtype) -> Iterator[None]:
    """Create tensors without a stated dtype in float64 if the tokens are; a model in half precision keeps float32."""
    before = torch.get_default_dtype()
    if dtype == torch.float64:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def uninitialised_as_nan() -> Iterator[None]:
    """Fill the memory of torch.empty() with NaN, so that a run which reads some of it shows that."""
    before = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    # torch.use_deterministic_algorithms() would import the compiler, which takes a second.
    torch._C._set_deterministic_algorithms(True, warn_only=not before or warns_only)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=warns_only)


@contextlib.contextmanager
def restored(module: nn.Module | None) -> Iterator[None]:
    """Restore a module's attributes and buffers afterwards: empty caches, unchanged counters, dicts without new keys.

    A tensor that was written to is replaced by one with its former values, because a backward pass may still need the
    tensor itself. The copy of these is kept for the next run, since large tables are rarely written to.
    """
    parts = [] if module is None else list(module.modules())
    holders = [holder for part in parts for holder in (vars(part), part._buffers)]
    contents = [dict(holder) for holder in holders]
    collections: list[tuple[Any, Any]] = [
        (value, cast(Any, value).copy())
        for held in contents
        for value in held.values()
        if type(value) in COLLECTIONS
    ]
    tensors = [value for held in contents for value in held.values() if isinstance(value, Tensor)]
    saved = [(tensor, _copied(tensor)) for tensor in tensors]
    try:
        yield
    finally:
        for collection, entries in collections:
            collection.clear()
            (collection.extend if isinstance(collection, list) else collection.update)(entries)
        # The copy itself stays as it is, for a run around this one: the module may write to what it gets.
        written = {
            id(it): copied.clone() for it, (version, copied) in saved if it._version != version
        }
        for holder, held in zip(holders, contents, strict=True):
            if written or not _holds_the_same(holder, held):
                holder.clear()
                holder.update((name, written.get(id(it), it)) for name, it in held.items())


def _holds_the_same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Check whether two mappings have the same names for the same objects, in the same order."""
    return a.keys() == b.keys() and all(map(operator.is_, a.values(), b.values()))


def _copied(tensor: Tensor) -> tuple[int, Tensor]:
    """Return the version of a tensor, which counts the writes to it, and a copy of that version."""
    copied = COPIES.get(tensor)
    if copied is None or copied[0] != tensor._version:
        copied = COPIES[tensor] = (tensor._version, tensor.detach().clone())
    return copied


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restore everything global that a target may change, and print to stderr meanwhile.

    Warnings are hidden, because the target's warnings do not concern the check.
    """
    restorers = [remember() for remember in (*TORCH, *PYTHON)]
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),
            torch.enable_grad(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for restore in restorers:
            restore()


Restore = Callable[[], object]
Remember = Callable[[], Restore]
"""A function that remembers a setting, and returns a function that restores it."""


def _setting(get: Callable[[], Any], put: Callable[[Any], object]) -> Remember:
    """Return how to remember a setting that a function returns and that another one sets."""

    def remember() -> Restore:
        before = get()
        return lambda: None if _same(get(), before) else put(before)

    return remember


def _same(a: Any, b: Any) -> bool:
    """Compare settings; states of random generators are tensors and arrays, and always set anew."""
    return isinstance(a, str | int | float | torch.device | torch.dtype | None) and a == b


def _attribute(holder: Any, name: str) -> Remember:
    """Return how to remember what an attribute refers to."""
    return _setting(lambda: getattr(holder, name), lambda value: setattr(holder, name, value))


def _contents(holder: Any, name: str) -> Remember:
    """Return how to remember a list or mapping that others hold, and what is in it."""

    def remember() -> Restore:
        held = getattr(holder, name)
        entries = held.copy()

        def restore() -> None:
            if held != entries:
                held.clear()
                (held.update if isinstance(held, MutableMapping) else held.extend)(entries)
            setattr(holder, name, held)

        return restore

    return remember


def _signal_handlers() -> Restore:
    """Remember the handlers of all signals; only the main thread can set them."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    return restore


def _change_folder(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


def _default_device() -> torch.device | None:
    """Return what `torch.set_default_device` has set, or None."""
    return getattr(getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), "device", None)


def _autocast_state(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


def _set_autocast(kind: str, state: tuple[bool, torch.dtype]) -> None:
    torch.set_autocast_enabled(kind, state[0])
    torch.set_autocast_dtype(kind, state[1])


def _working_directory() -> str | None:
    """Return the working directory; None if it no longer exists."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _modes() -> Restore:
    """Remember how many modes observe PyTorch's operations: a block that is interrupted may leave its own behind."""
    functions = torch._C._len_torch_function_stack()
    dispatches = torch._C._len_torch_dispatch_stack()

    def restore() -> None:
        while torch._C._len_torch_function_stack() > functions:
            torch._C._pop_torch_function_stack()
        while torch._C._len_torch_dispatch_stack() > dispatches:
            torch._C._pop_torch_dispatch_stack(None)

    return restore


PYTHON: tuple[Remember, ...] = (
    _setting(random.getstate, random.setstate),
    _setting(numpy.random.get_state, numpy.random.set_state),
    _setting(numpy.get_printoptions, lambda options: numpy.set_printoptions(**options)),
    _setting(numpy.geterr, lambda errors: numpy.seterr(**errors)),
    _setting(_working_directory, _change_folder),
    _setting(sys.getrecursionlimit, sys.setrecursionlimit),
    _contents(os, "environ"),
    _contents(sys, "path"),
    _contents(sys, "argv"),
    _contents(warnings, "filters"),
    _attribute(sys, "stdout"),
    _attribute(sys, "stderr"),
    _attribute(sys, "stdin"),
    _attribute(sys, "excepthook"),
    _attribute(logging.root.manager, "disable"),
    _setting(lambda: logging.root.level, logging.root.setLevel),
    _contents(logging.root, "handlers"),
    _signal_handlers,
)

TORCH: tuple[Remember, ...] = (
    _setting(torch.get_rng_state, torch.set_rng_state),
    _setting(torch.get_default_dtype, torch.set_default_dtype),
    _setting(_default_device, torch.set_default_device),
    _setting(torch.get_num_threads, torch.set_num_threads),
    _setting(torch.is_grad_enabled, torch.set_grad_enabled),
    _setting(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    _setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    _setting(get_printoptions, lambda options: torch.set_printoptions(**options)),
    _setting(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    _setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *(
        _setting(partial(_autocast_state, kind), partial(_set_autocast, kind))
        for kind in AUTOCAST_DEVICES
    ),
    _modes,  # the last one, because a default device is a mode, too
)


@contextlib.contextmanager
def unforked() -> Iterator[None]:
    """End every process that the block forks, where the block ends: only one process goes on with the check."""
    process = getpid()
    try:
        yield
    finally:
        if getpid() != process:
            _exit(0)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """End a block when its time is up, as `limited` does, and leave no mode behind.

    The block may end where it leaves a mode or switches gradients on again, so that both are restored here.
    """
    restorers = [_modes(), _setting(torch.is_grad_enabled, torch.set_grad_enabled)()]
    try:
        with limited(seconds):
            yield
    finally:
        for restore in restorers:
            restore()
