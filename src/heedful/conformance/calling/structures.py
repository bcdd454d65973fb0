"""Arguments that hold several values, as a target's source takes them apart: tuples, lists, dictionaries, objects."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.target import Target
from heedful.conformance.recording.source import nodes_of

Key = int | str
KNOWN = (*names.ROTARY_TABLES, *names.CACHES, *names.POSITION_IDS, *names.CACHE_SLOTS)
LISTS: re.Pattern[str] = re.compile(r"\b(list|List|Sequence|tuple|Tuple)\b")


@dataclass(frozen=True)
class Structure:
    """An argument that holds several values.

    Attributes:
        kind: tuple, dict or SimpleNamespace.
        parts: A part for each index, key or attribute: its name in the code, or what it holds in its turn.
    """

    kind: type
    parts: Mapping[Key, str | Structure]

    def filled(self, values: Mapping[str, Any]) -> Any:
        """Return an argument of this structure with the given values by name."""
        whole = {
            key: part.filled(values) if isinstance(part, Structure) else values[part]
            for key, part in self.parts.items()
        }
        return (
            tuple(whole.values())
            if self.kind is tuple
            else self.kind(**{str(key): it for key, it in whole.items()})
        )

    @property
    def names(self) -> list[str]:
        """The names of all values, in order."""
        parts = self.parts.values()
        nested = (it.names if isinstance(it, Structure) else [it] for it in parts)
        return [name for inner in nested for name in inner]

    def paths(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the path and the name of each value, such as ("state[0]", "hidden")."""
        for key, part in self.parts.items():
            inner = f"{path}.{key}" if self.kind is SimpleNamespace else f"{path}[{key!r}]"
            yield from part.paths(inner) if isinstance(part, Structure) else [(inner, part)]


def structures(target: Target) -> dict[str, Structure]:
    """Return the structures of a target's required arguments, as far as its `forward` takes them apart itself."""
    nodes = list(nodes_of(target.forward))
    found = {
        name: _structure(name, target.parameters[name].annotation, nodes)
        for name in target.required
        if name not in KNOWN
    }
    return {name: structure for name, structure in found.items() if structure is not None}


def names_within(target: Target) -> dict[str, str]:
    """Return the names of the values within structured arguments, by their paths, such as {"state[0]": "hidden"}."""
    return {
        path: name for owner, it in structures(target).items() for path, name in it.paths(owner)
    }


def _structure(name: str, annotation: Any, nodes: list[ast.AST]) -> Structure | None:
    """Return the structure of an argument; None if the code uses it as a tensor."""
    fields = _fields(name, nodes)
    attributes = {*fields[SimpleNamespace]}
    if any(hasattr(Tensor, it) for it in attributes) or attributes & _methods(name, nodes):
        return None
    unpacked = next((it for it in nodes if _is_unpacking(it, name)), None)
    if isinstance(unpacked, ast.Assign) and isinstance(unpacked.targets[0], ast.Tuple):
        return _of_elements(unpacked.targets[0].elts, name)
    if fields[dict]:
        return Structure(dict, {key: key for key in fields[dict]})
    if fields[SimpleNamespace]:
        return Structure(SimpleNamespace, {key: key for key in fields[SimpleNamespace]})
    indices = fields[int]
    count = max(indices, default=-1) + 1
    listed = _is_list(annotation)
    if (count > 1 and len(indices) == count) or (listed and count):
        return Structure(tuple, {i: indices.get(i) or f"{name}_{i}" for i in range(count)})
    return None


def _methods(name: str, nodes: list[ast.AST]) -> set[str]:
    """Return the methods of a variable that code calls."""
    functions = (it.func for it in nodes if isinstance(it, ast.Call))
    return {
        it.attr
        for it in functions
        if isinstance(it, ast.Attribute) and isinstance(it.value, ast.Name) and it.value.id == name
    } - {"get"}


def _fields(name: str, nodes: list[ast.AST]) -> dict[type, dict[Any, str]]:
    """Return the keys, attributes and indices that code reads of a variable, each with the variable that it goes to."""
    fields: dict[type, dict[Any, str]] = {dict: {}, SimpleNamespace: {}, int: {}}
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name(id=it), slice=ast.Constant(value=str(key))) if (
                it == name
            ):
                fields[dict][key] = key
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=it), attr="get"),
                args=[ast.Constant(value=str(key)), *_],
            ) if it == name:
                fields[dict][key] = key
            case ast.Subscript(value=ast.Name(id=it), slice=ast.Constant(value=int(i))) if (
                it == name and i >= 0
            ):
                fields[int].setdefault(i, "")
            case ast.Attribute(value=ast.Name(id=it), attr=attribute) if it == name:
                if attribute != "get" and not hasattr(dict, attribute):
                    fields[SimpleNamespace][attribute] = attribute
            case ast.Assign(targets=[target], value=value):
                _name_indices(name, target, value, fields[int])
    return fields


def _name_indices(name: str, target: ast.expr, value: ast.expr, indices: dict[Any, str]) -> None:
    """Note the variables of `a = name[0]` and of `a, b = name[0], name[1]`."""
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    for variable, part in pairs:
        match variable, part:
            case (
                ast.Name(id=own),
                ast.Subscript(value=ast.Name(id=it), slice=ast.Constant(value=int(i))),
            ) if it == name:
                indices[i] = own


def _is_unpacking(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=elements)], value=ast.Name(id=it)):
            starred = any(isinstance(element, ast.Starred) for element in elements)
            return it == name and not starred
    return False


def _of_elements(elements: list[ast.expr], name: str) -> Structure:
    """Return the tuple whose entries are assigned to some targets."""
    parts: dict[Key, str | Structure] = {}
    for i, element in enumerate(elements):
        match element:
            case ast.Tuple(elts=inner):
                parts[i] = _of_elements(inner, f"{name}_{i}")
            case ast.Name(id=own) if own != "_":
                parts[i] = own
            case _:
                parts[i] = f"{name}_{i}"
    return Structure(tuple, parts)


def _is_list(annotation: Any) -> bool:
    if annotation is inspect.Parameter.empty:
        return False
    text = annotation if isinstance(annotation, str) else str(annotation)
    return LISTS.search(text) is not None
