"""Whether this thread computes attention of tokens or heads that are sharded over ranks; `parallel` sets it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from heedful.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Sharded:
    """How this thread computes attention.

    Attributes:
        attend: takes the arguments of `attention`, of this rank's tokens.
        places: int64, the places of this rank's tokens among all.
        tokens: how many tokens there are in all.
    """

    attend: Callable[..., Any]
    places: Int64[Tensor, " own"]
    tokens: int


_by_thread: dict[int, Sharded] = {}
_first_heads: dict[int, int] = {}  # by thread
_first_rows: dict[int, int] = {}  # by thread


def current() -> Sharded | None:
    """Return how this thread computes attention of sharded tokens; None if its tokens are all there are."""
    return _by_thread.get(threading.get_ident()) if _by_thread else None


@contextmanager
def computing(sharded: Sharded) -> Iterator[None]:
    """Compute attention so in this thread, while the context lasts."""
    thread = threading.get_ident()
    if thread in _by_thread:
        raise ArgumentError(
            "context_parallel",
            expected="one context at a time",
            received="a context within another",
            remedy="Leave the first one before.",
        )
    _by_thread[thread] = sharded
    try:
        yield
    finally:
        del _by_thread[thread]


def first_head() -> int:
    """Return the place of this thread's first query head among all; other ranks may have those before."""
    return _first_heads.get(threading.get_ident(), 0) if _first_heads else 0


@contextmanager
def heads_from(first: int) -> Iterator[None]:
    """Count query heads from `first` in this thread, while the context lasts."""
    thread = threading.get_ident()
    _first_heads[thread] = first
    try:
        yield
    finally:
        del _first_heads[thread]


def first_row() -> int:
    """Return the place of this thread's first batch entry among all; other ranks may have those before."""
    return _first_rows.get(threading.get_ident(), 0) if _first_rows else 0


@contextmanager
def rows_from(first: int) -> Iterator[None]:
    """Count batch entries from `first` in this thread, while the context lasts."""
    thread = threading.get_ident()
    _first_rows[thread] = first
    try:
        yield
    finally:
        del _first_rows[thread]


def refuse(what: str) -> None:
    """Raise ArgumentError if this thread's tokens are sharded, because something would take them for all tokens."""
    if current() is not None:
        raise ArgumentError(
            "context_parallel",
            expected="heedful.attention() and modules that compute with it: heedful.nn, heedful.gpt",
            received=what,
            remedy="It would take the tokens of this rank for all tokens. Use it outside of the context.",
        )


def all_tokens(tokens: int) -> int:
    """Return the number of tokens of all ranks, for so many of this one."""
    sharded = current()
    return tokens if sharded is None else sharded.tokens


def default_positions(past: int, tokens: int, device: torch.device) -> Int64[Tensor, " tokens"]:
    """Return the positions of tokens that follow `past` others, or that this rank has.

    Raises:
        ArgumentError: this rank has another number of tokens, or a cache.
    """
    sharded = current()
    if sharded is None:
        return torch.arange(past, past + tokens, device=device)
    if past or len(sharded.places) != tokens:
        raise ArgumentError(
            "x",
            expected=f"the {len(sharded.places)} tokens of this rank, without a cache, within context_parallel()",
            received=f"{tokens} tokens after {past} others",
            remedy="shard(tokens, group, order, dim=1) returns them.",
        )
    return sharded.places.to(device)
