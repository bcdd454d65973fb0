"""Find the class of a module that a constructor takes ready-made, such as the inner attention of a layer."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from heedful.conformance.calling.conventional import DROPOUT
from heedful.conformance.recording.source import is_own_attribute, nodes_of, texts_compared

ROTARY: re.Pattern[str] = re.compile(r"rope|rotary")
"""What a part is called that works on single heads, in lower case."""
EMBEDDING: re.Pattern[str] = re.compile(r"^(\w+_)?(embeddings?|embed|emb|embed_tokens)$")
"""What a parameter is called that takes a table of embeddings, in lower case."""
SHORTEST_WORD = 3
LAYERS: Mapping[str, Callable[[int, int], nn.Module]] = {
    r"drop": lambda *_: nn.Dropout(DROPOUT),
    r"act(_|iv|$)|relu|gelu": lambda *_: nn.GELU(),
    r"norm|^ln": lambda width, _: nn.LayerNorm(width),
    r"qkv": lambda width, keys: nn.Linear(width, width + 2 * keys),
    r"kv": lambda width, keys: nn.Linear(width, 2 * keys),
    r"proj|linear|^fc|dense|^to_|^w_?[qkvo]$|out$": lambda width, _: nn.Linear(width, width),
}
"""The layers that parameters take whose names contain some words, by the widths of the tokens and of all keys."""


def part_classes(cls: Callable[..., Any], parameter: str, hint: Any) -> Iterator[type[nn.Module]]:
    """Yield the classes of which a constructor's parameter may be an instance: the annotated one, or some of the file.

    Only a parameter that is kept and called, as `self.part = part` and `self.part(…)`, takes a module of the file. The
    class has a word of its name, at the end if possible.
    """
    if inspect.isclass(hint) and issubclass(hint, nn.Module) and hint is not nn.Module:
        yield hint
    if not inspect.isclass(cls) or not _is_kept_and_called(cls, parameter):
        return
    words = [it for it in parameter.lower().split("_") if len(it) >= SHORTEST_WORD]
    found = list[type[nn.Module]]()
    for name, member in vars(sys.modules[cls.__module__]).items():
        of_file = inspect.isclass(member) and member.__module__ == cls.__module__
        if not of_file or not issubclass(member, nn.Module) or issubclass(member, cls):
            continue
        if any(word in name.lower() for word in words):
            found.append(member)
    yield from sorted(found, key=lambda it: not it.__name__.lower().endswith(tuple(words)))


def layer_by_name(parameter: str, width: int, keys: int | None = None) -> nn.Module:
    """Return a layer for a parameter that takes any module, by its name; one that changes nothing if it tells none.

    Args:
        parameter: Its name.
        width: The width of the tokens.
        keys: The width of the keys of all heads; None for that of the tokens.
    """
    make = _maker(parameter)
    return nn.Identity() if make is None else make(width, width if keys is None else keys)


def _maker(parameter: str) -> Callable[[int, int], nn.Module] | None:
    """Return the function that makes the layer which a parameter is named after; None if its name tells none."""
    name = parameter.lower()
    return next((make for words, make in LAYERS.items() if re.search(words, name)), None)


def takes_layer(cls: Callable[..., Any], parameter: str) -> bool:
    """Check whether a constructor keeps a layer that it is given under a layer's name, and its methods call that."""
    is_named = _maker(parameter) is not None
    return is_named and inspect.isclass(cls) and _is_kept_and_called(cls, parameter)


def makes_layer(cls: Callable[..., Any], parameter: str) -> bool:
    """Check whether a constructor calls what it is given under a layer's name, as in `self.norm = norm_layer(dim)`."""
    is_named = _maker(parameter) is not None
    constructor = nodes_of(cls.__init__) if is_named and inspect.isclass(cls) else ()
    called = (it.func for it in constructor if isinstance(it, ast.Call))
    return any(isinstance(it, ast.Name) and it.id == parameter for it in called)


def takes_embedding(cls: Callable[..., Any], parameter: str) -> bool:
    """Check whether a constructor takes a table of embeddings ready-made, so that nothing else is kept in its place."""
    return (
        EMBEDDING.search(parameter.lower()) is not None
        and ROTARY.search(parameter.lower()) is None
        and inspect.isclass(cls)
        and _is_kept_and_called(cls, parameter, alone=True)
    )


def padding_id(cls: Callable[..., Any], parameter: str) -> int | None:
    """Return the id of padding that a table of embeddings has for a constructor which reads one of it; None if none."""
    for node in nodes_of(cls):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="padding_idx") if name == parameter:
                return 0
    return None


def handed_texts(cls: Callable[..., Any]) -> dict[str, str]:
    """Return the first text with which other classes of the file compare the parameters that a class hands on to them.

    As in `self.attention = Attention(kind, size)`, where Attention compares `kind`.
    """
    texts: dict[str, str] = {}
    module = sys.modules.get(cls.__module__)
    classes = {} if module is None else vars(module)
    for node in nodes_of(cls):
        match node:
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                other = classes.get(name)
            case _:
                continue
        if not inspect.isclass(other) or not (compared := texts_compared(other)):
            continue
        given = dict(zip(inspect.signature(other).parameters, args, strict=False))
        given |= {it.arg: it.value for it in keywords if it.arg}
        for parameter, value in given.items():
            if isinstance(value, ast.Name) and parameter in compared:
                texts.setdefault(value.id, compared[parameter][0])
    return texts


def _is_kept_and_called(cls: type, parameter: str, *, alone: bool = False) -> bool:
    """Check whether a class keeps a parameter and calls it; nothing else may be kept in its place if it is `alone`."""
    nodes = list(nodes_of(cls))
    kept, others = set[str](), set[str]()
    for attribute, value in _attributes_assigned(nodes):
        own = isinstance(value, ast.Name) and value.id == parameter
        (kept if own else others).add(attribute)
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    called = {attribute for it in calls for attribute in kept if is_own_attribute(it, attribute)}
    return bool(called - others if alone else called)


def _attributes_assigned(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the attributes of `self` that are assigned, one by one or several in a line, each with its value."""
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = list(zip(targets, values, strict=False))
            case ast.Assign(targets=[target], value=value):
                pairs = [(target, value)]
            case _:
                continue
        for target, value in pairs:
            match target:
                case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
                    yield attribute, value
