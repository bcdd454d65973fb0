"""The leaves of a torch call's arguments. Most calls nest none, and pytree takes its time for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils import _pytree as pytree


def call_leaves(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the leaves of a call's arguments, and then those of its keywords."""
    for value in (*arguments, *keywords.values()):
        if _nests(value):
            yield from pytree.tree_leaves(value)
        else:
            yield value


def mapped(function: Callable[[Any], Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return a call's arguments with a function's result in place of each leaf."""
    return tuple(_mapped(function, value) for value in arguments)


def mapped_keywords(function: Callable[[Any], Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's keywords with a function's result in place of each leaf."""
    return {name: _mapped(function, value) for name, value in keywords.items()}


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    return pytree.tree_map(function, value) if _nests(value) else function(value)


def _nests(value: Any) -> bool:
    """Check whether a value may have leaves, as a tuple, a list or a dictionary has; named tuples are tuples."""
    return isinstance(value, tuple) or type(value) in pytree.SUPPORTED_NODES
