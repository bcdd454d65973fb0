"""Follow a number from the line that uses it up through the calls that hand it on, to the line that computes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType

from torch import nn

from heedful.conformance.recording.assignments import assigns
from heedful.conformance.recording.source import ParsedSource, SourceLine, contains_line, parsed
from heedful.conformance.recording.target_source import methods_of
from heedful.observation import Step

DEPTH = 4
"""How many calls are followed at most."""


def line_computing_number(module: nn.Module | None, step: Step) -> SourceLine | None:
    """Return the line outside a step's function that computes a number which the step's line takes from a parameter.

    Args:
        module: The outermost module.
        step: A step that reads no tensor, such as an arange.
    """
    if module is None or step.module is None or step.inputs:
        return None
    for function in methods_of(module.get_submodule(step.module)):
        source = parsed(function) if function.__qualname__ == step.function else None
        for statement in () if source is None else source.statements():
            if contains_line(statement, step.line) and not hasattr(statement, "body"):
                for name in _numbers_in(statement):
                    found = _given(module, step.module, function, name, DEPTH)
                    if found is not None:
                        return found
    return None


def _numbers_in(statement: ast.stmt) -> list[str]:
    """Return the variables that a statement reads as they are, not for an attribute of theirs."""
    owners = {id(it.value) for it in ast.walk(statement) if isinstance(it, ast.Attribute)}
    return [
        it.id
        for it in ast.walk(statement)
        if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Load) and id(it) not in owners
    ]


def _given(
    module: nn.Module, path: str, function: FunctionType, parameter: str, depth: int
) -> SourceLine | None:
    """Return the line that computes what callers of a method give to a parameter; None if they give constants."""
    code = function.__code__
    taken = list(code.co_varnames[1 : code.co_argcount])
    if parameter not in taken or not depth:
        return None
    for caller_path, caller, source, call in _calls_of(module, path, function.__name__):
        position = taken.index(parameter)
        positional = call.args[position] if position < len(call.args) else None
        keyword = (it.value for it in call.keywords if it.arg == parameter)
        match positional or next(keyword, None):
            case None | ast.Constant():
                continue
            case ast.Name(id=name):
                part = module.get_submodule(caller_path)
                skipped = {id(it) for it in _statements_not_taken(source, part)}
                made = (
                    it
                    for it in source.statements()
                    if it.lineno < call.lineno and id(it) not in skipped
                )
                last = max(
                    (it for it in made if assigns(it, name)), key=lambda it: it.lineno, default=None
                )
                if last is not None:
                    return source.line_of(last)
                found = _given(module, caller_path, caller, name, depth - 1)
                if found is not None:
                    return found
            case _:
                return SourceLine.at(source.file, call.lineno)
    return None


def _statements_not_taken(source: ParsedSource, part: nn.Module) -> Iterator[ast.AST]:
    """Yield what is in the branch of `if self.flag:` that a module does not take, because of its own flag."""
    for statement in source.statements():
        match statement:
            case ast.If(test=ast.Attribute(value=ast.Name(id="self"), attr=flag)) if isinstance(
                taken := getattr(part, flag, None), bool
            ):
                for child in statement.orelse if taken else statement.body:
                    yield from ast.walk(child)


def _calls_of(
    module: nn.Module, path: str, name: str
) -> Iterator[tuple[str, FunctionType, ParsedSource, ast.Call]]:
    """Yield the calls of a method: by its own class, and as `self.part(…)` by the module that it is a part of."""
    parent, _, attribute = path.rpartition(".")
    called = [(path, name)]
    if name == "forward" and path:
        called.append((parent, attribute))
    for owner, callee in called:
        for function in methods_of(module.get_submodule(owner)):
            source = parsed(function)
            for node in () if source is None else source.nodes:
                match node:
                    case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=attr)) if (
                        attr == callee and source is not None
                    ):
                        yield owner, function, source, node
