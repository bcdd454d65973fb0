"""Find the class of a module that a constructor takes ready-made, such as the inner attention of a layer."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from heedful.conformance.recording.source import nodes_of

ROTARY: re.Pattern[str] = re.compile(r"rope|rotary")
"""What a part is called that works on single heads, in lower case."""
SHORTEST_WORD = 3


def part_classes(cls: Callable[..., Any], parameter: str, hint: Any) -> Iterator[type[nn.Module]]:
    """Yield the classes of which a constructor's parameter may be an instance: the annotated one, or some of the file.

    Only a parameter that is kept and called, as `self.part = part` and `self.part(…)`, takes a module of the file. The
    class has a word of its name.
    """
    if inspect.isclass(hint) and issubclass(hint, nn.Module) and hint is not nn.Module:
        yield hint
    if not inspect.isclass(cls) or not _is_kept_and_called(cls, parameter):
        return
    words = [it for it in parameter.lower().split("_") if len(it) >= SHORTEST_WORD]
    for name, member in vars(sys.modules[cls.__module__]).items():
        of_file = inspect.isclass(member) and member.__module__ == cls.__module__
        if not of_file or not issubclass(member, nn.Module) or issubclass(member, cls):
            continue
        if any(word in name.lower() for word in words):
            yield member


def _is_kept_and_called(cls: type, parameter: str) -> bool:
    nodes = list(nodes_of(cls))
    kept: set[str] = set()
    for node in nodes:
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)],
                value=ast.Name(id=name),
            ) if name == parameter:
                kept.add(attribute)
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    return any(isinstance(it, ast.Attribute) and it.attr in kept for it in calls)
