"""The leaves of nested arguments, with their names: of lists, dictionaries, dataclasses and other objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a value with its path, such as "[0]", "['keys']" or ".tokens"; "" for the value itself."""
    if _holds_tensors(value):
        for name, field in vars(value).items():
            yield from leaves_of(field, f"{path}.{name}")
        return
    for keys, leaf in pytree.tree_flatten_with_path(value, is_leaf=_holds_tensors)[0]:
        inner = path + pytree.keystr(keys)
        if _holds_tensors(leaf):
            yield from leaves_of(leaf, inner)
        else:
            yield inner, leaf


def leaf_named(name: str, arguments: Mapping[str, Any]) -> Any:
    """Return an argument, or a leaf within one, by its name, such as "x" or "batch['keys']"; None if there is none."""
    leaves = (
        (f"{argument}{path}", leaf)
        for argument, value in arguments.items()
        for path, leaf in leaves_of(value)
    )
    return next((leaf for path, leaf in leaves if path == name), None)


def with_changed_leaves(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Return a copy of a value in which a function of the path and the leaf gives every leaf."""
    if _holds_tensors(value):
        holder = copy.copy(value)
        for name, field in vars(value).items():
            object.__setattr__(holder, name, with_changed_leaves(field, change, f"{path}.{name}"))
        return holder

    def changed(keys: Any, leaf: Any) -> Any:
        inner = path + pytree.keystr(keys)
        return (with_changed_leaves if _holds_tensors(leaf) else _apply)(leaf, change, inner)

    return pytree.tree_map_with_path(changed, value, is_leaf=_holds_tensors)


def _apply(leaf: Any, change: Callable[[str, Any], Any], path: str) -> Any:
    return change(path, leaf)


def _holds_tensors(value: Any) -> bool:
    """Check whether a value is an object with tensors as attributes, such as a dataclass or a namespace."""
    if isinstance(value, Tensor | nn.Module | type) or type(value) in pytree.SUPPORTED_NODES:
        return False
    return any(isinstance(field, Tensor) for field in getattr(value, "__dict__", {}).values())
