"""Runs that can be compared: of the same random numbers, on a module in the same state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """The same random numbers for every run, so that two differ by what they were given alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def restored(module: nn.Module | None) -> Iterator[None]:
    """A module's attributes and buffers are afterwards as before: caches empty, counters where they were."""
    parts = [] if module is None else list(module.modules())
    attributes = [(part, dict(vars(part)), dict(part._buffers)) for part in parts]
    held = [
        it
        for _, own, buffers in attributes
        for it in (*own.values(), *buffers.values())
        if isinstance(it, Tensor)
    ]
    kept = [(tensor, tensor._version, tensor.detach().clone()) for tensor in held]
    try:
        yield
    finally:
        for part, own, buffers in attributes:
            vars(part).clear()
            vars(part).update(own)
            part._buffers.clear()
            part._buffers.update(buffers)
        with torch.no_grad():
            for tensor, version, value in kept:
                if tensor._version != version:
                    tensor.copy_(value)
