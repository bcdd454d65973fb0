"""Lines of a target's source that no recorded step stands for: returns, assignments, changes of attributes."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType

from torch import nn

from heedful.conformance.recording.inputs import Observation
from heedful.observation import Step


@dataclass(frozen=True)
class SourceLine:
    """A line of the target's source."""

    file: str
    line: int
    source: str

    @classmethod
    def of(cls, step: Step | None) -> SourceLine | None:
        """Where a recorded step was made; None if no source made it."""
        if step is None or step.file is None or step.line is None:
            return None
        return cls(step.file, step.line, " ".join(step.source.split()))


def functions_of(target: Callable[..., object]) -> Iterator[FunctionType]:
    """The functions that a target is written in: itself, or the methods of its modules' own classes."""
    if inspect.isfunction(target):
        yield target
    for part in target.modules() if isinstance(target, nn.Module) else ():
        yield from methods_of(part)


def methods_of(module: nn.Module) -> Iterator[FunctionType]:
    """What a module's own class defines."""
    yield from (it for it in vars(type(module)).values() if inspect.isfunction(it))


def last_return(function: Callable[..., object]) -> SourceLine | None:
    """The last line on which a function returns something."""
    found = [place for node, place in _statements(function) if isinstance(node, ast.Return)]
    return max(found, key=lambda it: it.line, default=None)


def last_assignment(target: Callable[..., object], step: Step, variable: str) -> SourceLine | None:
    """The last line before a step's that assigns a local variable."""
    found = [
        place
        for function in functions_of(target)
        if function.__code__.co_qualname == step.function
        for node, place in _statements(function)
        if _assigns(node, variable) and step.line is not None and place.line < step.line
    ]
    return max(found, key=lambda it: it.line, default=None)


def attribute_mutation(module: nn.Module, attribute: str) -> SourceLine | None:
    """The line outside the constructor that assigns a module's attribute, or writes into it."""
    for function in methods_of(module):
        for node, place in () if function.__name__ == "__init__" else _statements(function):
            if _changes(node, attribute):
                return place
    return None


def _statements(function: Callable[..., object]) -> Iterator[tuple[ast.stmt, SourceLine]]:
    """Each statement within a function, and where it is; none if there is no source."""
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function)
    except (OSError, TypeError):
        return
    for node in ast.walk(ast.parse(textwrap.dedent("".join(lines)))):
        if isinstance(node, ast.stmt):
            yield node, SourceLine(file or "", first + node.lineno - 1, ast.unparse(node))


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


def attribute_definition(
    module: nn.Module | None, name: str, *, held: bool = False
) -> SourceLine | None:
    """The line of a module's class that makes one of its attributes: `self.name = …`, or registers it as a buffer.

    Args:
        module: within which the name is looked for.
        name: a dotted path, such as "heads.0.mask".
        held: whether it is asked how the module holds it, not what it holds.
    """
    if module is None:
        return None
    path, _, attribute = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        return None
    for kind in type(owner).__mro__:
        if kind.__module__.startswith("torch.") or kind is object:
            break
        place = _assignment(kind, lambda node: _makes(node, attribute), of_local=not held)
        if place is not None:
            return place
    return None


def _makes(node: ast.stmt, attribute: str) -> bool:
    match node:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            return name == attribute
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=name), *_]
            )
        ):
            return name == attribute
    return False


def _assignment(
    kind: type, wanted: Callable[[ast.stmt], bool], *, of_local: bool
) -> SourceLine | None:
    """The statement that makes an attribute; where that only takes a local variable, the one that makes this."""
    found = _parsed(kind)
    if found is None:
        return None
    file, tree, first = found
    for function in ast.walk(tree):
        body = list(ast.walk(function)) if isinstance(function, ast.FunctionDef) else []
        made = next((it for it in body if isinstance(it, ast.stmt) and wanted(it)), None)
        if made is None:
            continue
        taken = {it.id for it in ast.walk(made) if isinstance(it, ast.Name)}
        before = [
            it
            for it in body
            if isinstance(it, ast.Assign) and it.lineno < made.lineno and _makes_triangle(it, taken)
        ]
        node = before[-1] if before and of_local else made
        return SourceLine(file, first + node.lineno - 1, " ".join(ast.unparse(node).split()))
    return None


def _makes_triangle(node: ast.Assign, names: set[str]) -> bool:
    """Whether an assignment puts a triangular matrix into one of some variables."""
    receives = any(isinstance(it, ast.Name) and it.id in names for it in node.targets)
    calls = {it.attr for it in ast.walk(node) if isinstance(it, ast.Attribute)}
    return receives and bool(calls & {"triu", "tril", "triu_", "tril_"})


@lru_cache(maxsize=64)
def _parsed(kind: type) -> tuple[str, ast.Module, int] | None:
    """A class's file, syntax and first line; None if there is no source."""
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind)
    except (OSError, TypeError):
        return None
    return (file or "", ast.parse(textwrap.dedent("".join(lines))), max(first, 1))


def call_site(observation: Observation, step: Step) -> SourceLine | None:
    """The line `name = function(…)` of the call that a step was made in: the function's last step has that name."""
    last = step
    for following in observation.trace.steps[step.index + 1 :]:
        if following.function != step.function or (following.line or 0) < (last.line or 0):
            break
        last = following
    function, lines = step.function.rpartition(".")[2], linecache.getlines(step.file or "")
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, ast.Assign) and last.name in _names(node.targets):
            called = (it.func for it in ast.walk(node.value) if isinstance(it, ast.Call))
            if function in _names(called):
                source = " ".join(ast.unparse(node).split())
                return SourceLine(step.file or "", node.lineno, source)
    return None


def _names(nodes: Iterable[ast.expr]) -> set[str]:
    """The variables, or attributes, that expressions name."""
    inner = [it for node in nodes for it in ast.walk(node)]
    return {it.id for it in inner if isinstance(it, ast.Name)} | {
        it.attr for it in inner if isinstance(it, ast.Attribute)
    }
