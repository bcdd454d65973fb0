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
    """A module's attributes and buffers are afterwards as before: caches empty, counters where they were.

    A tensor that was written to gives its place to a copy of what it was: a backward pass may still need the tensor.
    """
    parts = [] if module is None else list(module.modules())
    holders = [holder for part in parts for holder in (vars(part), part._buffers)]
    contents = [dict(holder) for holder in holders]
    tensors = [it for held in contents for it in held.values() if isinstance(it, Tensor)]
    kept = {id(it): (it._version, it.detach().clone()) for it in tensors}
    try:
        yield
    finally:
        for holder, held in zip(holders, contents, strict=True):
            holder.clear()
            for name, value in held.items():
                written = isinstance(value, Tensor) and value._version != kept[id(value)][0]
                holder[name] = kept[id(value)][1] if written else value
