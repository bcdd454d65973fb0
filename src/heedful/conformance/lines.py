"""Lines of a target's source that no recorded step stands for: returns, assignments, changes of attributes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType

from torch import nn

from heedful.conformance.finding import Place
from heedful.conformance.subject import Subject
from heedful.observation import Step


def functions_of(subject: Subject) -> Iterator[FunctionType]:
    """The functions that a target is written in: itself, or the methods of its modules' own classes."""
    if inspect.isfunction(subject.function):
        yield subject.function
    for part in () if subject.module is None else subject.module.modules():
        yield from methods_of(part)


def methods_of(module: nn.Module) -> Iterator[FunctionType]:
    """What a module's own class defines."""
    yield from (it for it in vars(type(module)).values() if inspect.isfunction(it))


def last_return(function: Callable[..., object]) -> Place | None:
    """The last line on which a function returns something."""
    found = [place for node, place in _statements(function) if isinstance(node, ast.Return)]
    return max(found, key=lambda it: it.line, default=None)


def last_assignment(subject: Subject, step: Step, variable: str) -> Place | None:
    """The last line before a step's that assigns a local variable."""
    found = [
        place
        for function in functions_of(subject)
        if function.__code__.co_qualname == step.function
        for node, place in _statements(function)
        if _assigns(node, variable) and step.line is not None and place.line < step.line
    ]
    return max(found, key=lambda it: it.line, default=None)


def change_of(module: nn.Module, attribute: str) -> Place | None:
    """The line outside the constructor that assigns a module's attribute, or writes into it."""
    for function in methods_of(module):
        for node, place in () if function.__name__ == "__init__" else _statements(function):
            if _changes(node, attribute):
                return place
    return None


def _statements(function: Callable[..., object]) -> Iterator[tuple[ast.stmt, Place]]:
    """Each statement within a function, and where it is; none if there is no source."""
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function)
    except (OSError, TypeError):
        return
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
        if isinstance(node, ast.stmt):
            yield node, Place(file or "", first + node.lineno - 1, ast.unparse(node))


def _assigns(node: ast.stmt, variable: str) -> bool:
    match node:
        case ast.Assign(targets=targets):
            return any(isinstance(it, ast.Name) and it.id == variable for it in targets)
    return False


def _changes(node: ast.stmt, attribute: str) -> bool:
    """Whether it is `self.attribute = …`, `+= …`, `self.attribute[…] = …` or a call like `self.attribute.fill_(…)`."""
    match node:
        case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
            changed = target.value if isinstance(target, ast.Subscript) else target
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=changed, attr=name))) if (
            name.endswith("_")
        ):
            pass
        case _:
            return False
    match changed:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name == attribute
    return False
