"""Tensors in memory that ends the process if anything outside of it is touched, with strides of every kind."""

import ctypes
import math
import mmap
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(count: int, dtype: torch.dtype, *, at_end: bool) -> Tensor:
    """Return `count` elements between two pages that cannot be accessed, touching the last or else the first."""
    size = count * dtype.itemsize
    pages = -(-size // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for guard in (address, address + (pages + 1) * PAGE):
        if _libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), _PROT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    offset = PAGE + (pages * PAGE - size if at_end else 0)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)


def draw_strides(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw strides: dimensions in any order, with gaps between them, shared (stride 0) or overlapping."""
    last = len(shape) - 1
    order = [last, *rng.permutation(last)]  # from the innermost dimension outwards
    ordinary = rng.random() < 0.5
    if not ordinary and rng.random() < 0.3:  # the last dimension is not contiguous
        order = list(rng.permutation(len(shape)))
    strides = [0] * len(shape)
    step = 1
    for axis in order:
        size = max(shape[axis], 1)
        kind = "dense" if ordinary else _draw_kind(rng, contiguous=axis == last)
        if kind == "shared":
            continue
        if kind == "gap":
            step *= int(rng.integers(2, 4))
        strides[axis] = step
        step = step + int(rng.integers(size)) if kind == "overlapping" else step * size
    return tuple(strides)


def _draw_kind(rng: np.random.Generator, *, contiguous: bool) -> str:
    others = [0.05, 0.05, 0.1] if contiguous else [0.15, 0.15, 0.1]
    kinds = ["gap", "shared", "overlapping", "dense"]
    return str(rng.choice(kinds, p=[*others, 1 - sum(others)]))


def place(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    numbers: Callable[[int], np.ndarray],
) -> Tensor:
    """Return a tensor of drawn numbers in guarded memory. Memory between its elements is NaN, or True for Booleans."""
    strides = draw_strides(rng, shape)
    empty = math.prod(shape) == 0
    count = 1 if empty else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    storage = guarded(count, dtype, at_end=rng.random() < 0.7)
    storage.fill_(True if dtype == torch.bool else math.nan)
    if not empty:
        used = np.zeros(count, dtype=bool)
        np.lib.stride_tricks.as_strided(used, shape, strides)[...] = True
        used = torch.from_numpy(used)
        storage[used] = torch.from_numpy(numbers(int(used.sum()))).to(dtype)
    return storage.as_strided(shape, strides)
