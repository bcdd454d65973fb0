"""What the parameters of a constructor are: which of them need values, and which have conventional names."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, get_type_hints

from heedful.conformance.calling import names
from heedful.conformance.calling.configuration import Configuration
from heedful.conformance.calling.conventional import (
    SIZES,
    conventional_values,
    similar_name,
    value_by_name,
)
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.recording.source import fields_read, nodes_of, optional_fields_read


def unstated_parameters(target: Any, arguments: Mapping[str, Any]) -> list[str]:
    """Return the parameters of a class, without defaults, that the user gives no value for."""
    if not inspect.isclass(target):
        return []
    return [
        name
        for name, it in inspect.signature(target).parameters.items()
        if it.default is it.empty
        and it.kind not in (it.VAR_POSITIONAL, it.VAR_KEYWORD)
        and name not in arguments
    ]


def guessed_parameters(target: Any, arguments: Mapping[str, Any]) -> list[str]:
    """Return the parameters of a class, without defaults, whose names are not conventional."""
    known = conventional_values(arguments)
    hints = type_hints(target) if inspect.isclass(target) else {}
    return [
        name
        for name in unstated_parameters(target, arguments)
        if name not in known and not is_configuration(name, hints.get(name))
    ]


def guessed_fields(target: Any, arguments: Mapping[str, Any]) -> list[str]:
    """Return the fields of a configuration that a constructor reads and whose names are not conventional."""
    if not inspect.isclass(target):
        return []
    known, read = conventional_values(arguments), fields_read(target)
    hints = type_hints(target)
    holders = [
        name
        for name in unstated_parameters(target, arguments)
        if is_configuration(name, hints.get(name))
    ]
    fields = (field for name in holders for field in read.get(name, ()))
    return [it for it in fields if it not in arguments and value_by_name(it, known) is None]


def single_heads(target: Any, arguments: Mapping[str, Any]) -> list[str]:
    """Return the numbers of heads of a class that are 1 by default, where a wrong split into heads does not show."""
    if not inspect.isclass(target) or any(name in arguments for name in names.HEADS):
        return []
    parameters = inspect.signature(target).parameters
    return [name for name in names.HEADS if name in parameters and parameters[name].default == 1]


def heads_sliced(cls: Callable[..., Any]) -> int | None:
    """Return the number of heads that a class cuts into groups, `k[:, 0:4]`, `k[:, 4:6]` and `k[:, 6:8]`; None if none.

    With another number some groups would be empty.
    """
    bounds = set[tuple[int, int]]()
    for node in nodes_of(cls) if inspect.isclass(cls) else ():
        match node:
            case ast.Subscript(
                slice=ast.Tuple(
                    elts=[
                        ast.Slice(lower=None, upper=None),
                        ast.Slice(lower=ast.Constant(int(first)), upper=ast.Constant(int(last))),
                    ]
                )
            ):
                bounds.add((first, last))
            case _:
                pass
    ends, heads = {last for _, last in bounds}, max((last for _, last in bounds), default=0)
    starts = {first for first, _ in bounds}
    return heads if len(bounds) > 2 and 0 in starts and starts - {0} <= ends else None


def allows_cache(cls: Callable[..., Any], name: str) -> bool:
    """Check whether a constructor's flag lets calls use a cache, which each of them has a switch for."""
    forward = getattr(cls, "forward", None)
    taken = inspect.signature(forward).parameters if inspect.isfunction(forward) else ()
    return "cache" in name.lower() and any(names.CACHE_SWITCH.search(it) for it in taken)


def chooses_width(target: Any, arguments: Mapping[str, Any]) -> bool:
    """Check whether the widths of a class are conventional values, and none that are given or that are its defaults."""
    if not inspect.isclass(target) or any(name in SIZES for name in arguments):
        return False
    required = unstated_parameters(target, arguments)
    widths = (name if name in SIZES else similar_name(name) for name in required)
    return any(name in names.WIDTHS for name in (*widths, *_fields_declared(target)))


def _fields_declared(target: type) -> Iterator[str]:
    """Yield the names of the fields of the dataclasses that a class takes by its annotations."""
    hints = (it for it in type_hints(target).values() if dataclasses.is_dataclass(it))
    yield from (field.name for hint in hints for field in dataclasses.fields(hint))


def key_heads_parameter(target: Any, arguments: Mapping[str, Any]) -> str | None:
    """Return what a class calls its number of key heads, in its constructor or configuration, if it is ours to choose.

    It is not, if the user states a number of heads or of key heads.
    """
    stated = any(it in (*names.HEADS, *names.KEY_HEADS) for it in arguments)
    if not inspect.isclass(target) or stated:
        return None
    read = (field for fields in fields_read(target).values() for field in fields)
    configured = (*read, *optional_fields_read(target), *_fields_declared(target))
    called = (*inspect.signature(target).parameters, *configured)
    return next((name for name in called if name in names.KEY_HEADS), None)


def flags_of(target: type) -> dict[str, bool]:
    """Return the flags of a class by name, each with its default: parameters and fields of configurations."""
    return {name: it for name, it in defaults_of(target).items() if isinstance(it, bool)}


def defaults_of(target: type) -> dict[str, Any]:
    """Return the defaults of a class by name, of parameters and of fields of configurations.

    A field that the constructor reads of a configuration of no known class has the value that a check gives it.
    """
    parameters, hints = inspect.signature(target).parameters, type_hints(target)
    found: dict[str, Any] = {name: it.default for name, it in parameters.items()}
    known, read = conventional_values({}), fields_read(target)
    for name in (it for it in parameters if is_configuration(it, hints.get(it))):
        hint = hints.get(name)
        if dataclasses.is_dataclass(hint):
            found |= {it.name: it.default for it in dataclasses.fields(hint)}
        else:
            found |= {it: value_by_name(it, known) for it in read.get(name, ())}
    return found


def is_configuration(name: str, hint: Any) -> bool:
    """Check whether a parameter takes a configuration, by its name or by its annotation."""
    stated = inspect.isclass(hint) and (hint is Configuration or dataclasses.is_dataclass(hint))
    parts = name.startswith(names.CONFIGURATIONS_OF) or name.endswith(names.OF_CONFIGURATIONS)
    return stated or parts or name in names.CONFIGURATIONS


def type_hints(cls: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a constructor's parameters, without those whose annotations cannot be evaluated.

    A configuration without an annotation has the type of the one in its file that has all fields which are read.
    """
    constructor = cls.__init__ if inspect.isclass(cls) else cls
    parameters = inspect.signature(cls).parameters if inspect.isclass(cls) else {}
    unsaid = {
        name: found
        for name in parameters
        if name in names.CONFIGURATIONS and (found := _dataclass_beside(cls, name)) is not None
    }
    whole = attempt(lambda: get_type_hints(constructor))
    if not isinstance(whole, Exception):
        return {**unsaid, **whole}
    alone = (
        SimpleNamespace(
            __annotations__={name: it}, __globals__=getattr(constructor, "__globals__", {})
        )
        for name, it in getattr(constructor, "__annotations__", {}).items()
    )
    found = (attempt(lambda it=it: get_type_hints(it, it.__globals__)) for it in alone)
    known = {name: it for hints in found if isinstance(hints, dict) for name, it in hints.items()}
    return {**unsaid, **known}


def _dataclass_beside(cls: Callable[..., Any], parameter: str) -> type | None:
    """Return the only dataclass of a class's file with all the fields that it reads of a parameter; None otherwise."""
    read = {*fields_read(cls).get(parameter, ())}
    members = getattr(sys.modules.get(cls.__module__), "__dict__", {}).values()
    beside = [
        it
        for it in members
        if inspect.isclass(it)
        and it.__module__ == cls.__module__
        and dataclasses.is_dataclass(it)
        and read <= {field.name for field in dataclasses.fields(it)}
    ]
    return beside[0] if read and len(beside) == 1 else None
