"""The parameters of a constructor that hold several numbers, such as both sides of a window, and these numbers."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin

from heedful.conformance.calling import names
from heedful.conformance.calling.constructor_parameters import type_hints
from heedful.conformance.calling.conventional import DROPOUT, IMAGE_SIDE, similar_name
from heedful.conformance.recording.source import is_own_attribute, parsed

SIDES = (3, 3)  # of a window of pixels
OF_SEVERAL = ("min", "max", "len", "sum")  # functions of all numbers of a sequence


def sequence_parameters(cls: Callable[..., object]) -> dict[str, int]:
    """Return how many numbers a class takes from parameters of its constructor: 2 for `self.h, self.w = size`.

    It may also take them by index, or all of them as `*size`, which counts as two. A parameter counts that the class
    uses so under its own name in the constructor, or anywhere as the attribute that keeps it, and one whose annotation
    says so. If the constructor asks for its type, one number does as well.
    """
    source = parsed(cls)
    if source is None or not inspect.isclass(cls):
        return {}
    hints = type_hints(cls)
    constructors = [it for it in source.nodes if _is_constructor(it)]
    inside = [node for it in constructors for node in ast.walk(it)]
    counts: dict[str, int] = {}
    for name in inspect.signature(cls).parameters:
        if any(_asks_for_type(node, name) for node in inside):
            continue
        uses = [*_counts(inside, lambda it, name=name: _is_name(it, name))]
        for kept in _attributes(inside, name):
            uses += _counts(source.nodes, lambda it, kept=kept: is_own_attribute(it, kept))
        kinds = get_args(hints.get(name)) if get_origin(hints.get(name)) is tuple else ()
        uses += [len(kinds)] if {*kinds} == {int} else []
        if max(uses, default=0) > 1:
            counts[name] = max(uses)
    return counts


def _is_constructor(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _attributes(nodes: list[ast.AST], name: str) -> Iterator[str]:
    """Yield the attributes that keep a variable, as `self.size = size` or `self.size = tuple(size)`."""
    for node in nodes:
        match node:
            case ast.Assign(
                targets=[ast.Attribute(attr=kept)],
                value=ast.Call(func=ast.Name(id="tuple" | "list"), args=[value])
                | (ast.Name() as value),
            ) if _is_name(value, name):
                yield kept


def _asks_for_type(node: ast.AST, name: str) -> bool:
    """Check whether a node is `isinstance(name, …)`, or gives the variable another value."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance"), args=[value, _]):
            return _is_name(value, name)
        case ast.Assign(targets=targets):
            return any(_is_name(target, name) for target in targets)
    return False


def _counts(nodes: Iterable[ast.AST], is_sought: Callable[[ast.expr], bool]) -> Iterator[int]:
    """Yield how many numbers each use of an expression takes from it."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=elements)], value=value) if is_sought(value):
                yield len(elements)
            case ast.Subscript(value=value, slice=ast.Constant(value=int(i))) if is_sought(value):
                yield i + 1
            case ast.Starred(value=value) if is_sought(value):
                yield 2
            case ast.Subscript(value=value, slice=ast.UnaryOp()) if is_sought(value):  # [-1]
                yield 2
            case ast.Call(func=ast.Name(id=name), args=[value]) if name in OF_SEVERAL:
                if is_sought(value):
                    yield 2


def several_numbers(
    name: str, several: Mapping[str, int], parameters: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return as many numbers as a parameter takes: rates, sides of a window, or of an image that all windows divide.

    Two windows of a default size lie along each side of an image.
    """
    if similar_name(name) in names.DROPOUTS:
        return (DROPOUT,) * several[name]
    small = [it for it in parameters if any(word in it.lower() for word in names.SMALL_SIDES)]
    image = 2 * SIDES[0] if all(it in several for it in small) else IMAGE_SIDE
    defaults = (parameters[it].default for it in small if it in names.WINDOWS)
    image = next((2 * it for it in defaults if type(it) is int), image)
    return (SIDES[0] if name in small else image,) * several[name]
