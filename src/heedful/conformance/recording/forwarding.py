"""Follow an argument from call to call through a target's source, to the call that does not pass it on."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, is_dataclass
from types import FunctionType
from typing import Any

from torch import nn

from heedful.conformance.recording.source import SourceLine, names_in, parsed
from heedful.conformance.recording.target_source import methods_of, own_functions_of
from heedful.observation import Step


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


@dataclass(frozen=True)
class _Call:
    """A call in a function's source, and the function or module that it calls."""

    node: ast.Call
    callee: Callable[..., Any]

    def parameter_of(self, variables: Collection[str]) -> str | None:
        """Return the parameter of the callee that is given one of some variables; None if none is."""
        for index, argument in enumerate(self.node.args):
            if _mentions(argument, variables):
                positional = _parameters(self.callee)
                return positional[index] if index < len(positional) else None
        keywords = (it for it in self.node.keywords if _mentions(it.value, variables))
        return next((keyword.arg for keyword in keywords), None)

    def omits(self, names: Collection[str]) -> bool:
        """Check whether the callee has a parameter with one of some names that the call does not give, or as None."""
        given = {it.arg for it in self.node.keywords if not _is_none(it.value)}
        if None in given or any(isinstance(argument, ast.Starred) for argument in self.node.args):
            return False
        left = _parameters(self.callee)[len(self.node.args) :]
        return any(name in names for name in left) and given.isdisjoint(names)

    def given(self) -> set[str]:
        """Return the parameters of the callee that the call gives, and not as None."""
        positional = zip(_parameters(self.callee), self.node.args, strict=False)
        by_keyword = ((it.arg, it.value) for it in self.node.keywords if it.arg is not None)
        return {name for name, value in (*positional, *by_keyword) if not _is_none(value)}

    def line_giving_none(self, names: Collection[str]) -> int | None:
        """Return the number of the line that gives None for one of some parameters; None if no line does."""
        given = (it.value for it in self.node.keywords if it.arg in names and _is_none(it.value))
        return next((value.lineno for value in given), None)


def definition_line(function: Callable[..., Any]) -> SourceLine | None:
    """Return the line on which a function's definition begins; None without its source."""
    source = parsed(function)
    return None if source is None else source.line_of(source.tree.body[0])


def call_omitting(
    target: Callable[..., Any], argument: str, names: Collection[str]
) -> SourceLine | None:
    """Return the line of the call that should pass an argument on and does not; None if there is none.

    Args:
        target: A module or a function.
        argument: The name of its argument.
        names: The names under which callees take such an argument.
    """
    return _call_omitting(target, argument, names, depth=8, beside=False)


def call_forgetting(
    target: Callable[..., Any], argument: str, names: Collection[str]
) -> SourceLine | None:
    """Return the line of the call that should pass on an argument that the target never reads; None if it reads it."""
    is_read = parameter_is_read(getattr(target, "forward", target), argument)
    return None if is_read else call_omitting(target, argument, names)


def call_omitting_beside(
    target: Callable[..., Any], argument: str, names: Collection[str]
) -> SourceLine | None:
    """Return the line of a call that does not pass an argument on, though other calls may do so; None if all do."""
    return _call_omitting(target, argument, names, depth=8, beside=True)


def construction_omitting(target: type, argument: str) -> SourceLine | None:
    """Return the line of a constructor that builds a part without an argument that both have; None if there is none."""
    constructor = inspect.unwrap(target.__init__)
    source, known = parsed(constructor), getattr(constructor, "__globals__", {})
    calls = [it for it in source.nodes if isinstance(it, ast.Call)] if source else []
    for call in sorted(calls, key=lambda it: it.lineno):
        part = known.get(call.func.id) if isinstance(call.func, ast.Name) else None
        given = {it.arg for it in call.keywords}
        if source is None or not inspect.isclass(part) or given & {argument, None}:
            continue
        if any(isinstance(it, ast.Starred) for it in call.args):
            continue
        if argument in _signature(part)[len(call.args) :]:
            return SourceLine.at(source.file, call.lineno)
    return None


def call_mistaking(target: Callable[..., Any], names: Collection[str]) -> SourceLine | None:
    """Return the line of a call that gives a callee's parameter another one of its caller, which has one of that name.

    Args:
        target: The module or function whose source is searched for the call.
        names: The names that the parameter may have.
    """
    for caller in own_functions_of(target):
        source, own = parsed(caller), set(_parameters(caller))
        for node in () if source is None else source.nodes:
            match node:
                case ast.keyword(arg=str(parameter), value=ast.Name(id=given)) if (
                    parameter in own & {*names} and given in own - {parameter} and source
                ):
                    return SourceLine.at(source.file, node.value.lineno)
    return None


def call_given_another(
    function: FunctionType, argument: str, others: Collection[str]
) -> SourceLine | None:
    """Return the last line that calls something with another argument that an earlier call has, too.

    The function never reads the argument itself, and no second argument is in two calls. Two calls with one mask of two
    are one too many.
    """
    source = parsed(function)
    if source is None or parameter_is_read(function, argument):
        return None
    rivals = {*others} & {*_parameters(function)} - {argument}
    calls = [
        (node.lineno, it.id)
        for node in source.nodes
        if isinstance(node, ast.Call)
        for it in (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(it, ast.Name) and it.id in rivals
    ]
    lines = {rival: [line for line, name in calls if name == rival] for rival in rivals}
    repeated = [max(it) for it in lines.values() if len({*it}) > 1]
    return SourceLine.at(source.file, repeated[0]) if len(repeated) == 1 else None


def call_of_omitting(
    target: Callable[..., Any], function: str, names: Collection[str]
) -> SourceLine | None:
    """Return the line of a target that calls a function without one of its parameters; None if there is none.

    Args:
        target: The module or function whose source is searched for the call.
        function: The name by which the source calls the function.
        names: The names that the parameter may have.
    """
    for caller in own_functions_of(target):
        source = parsed(caller)
        for call in () if source is None else _resolved_calls(source.tree, None, caller):
            if source and names_in([call.node.func]) == {function} and call.omits(names):
                return SourceLine.at(source.file, call.node.lineno)
    return None


def call_without(module: nn.Module, parameter: str) -> SourceLine | None:
    """Return the first line of a module's methods that calls something without one of its parameters, or as None."""
    for method in methods_of(module):
        source = parsed(method)
        for call in () if source is None else _resolved_calls(source.tree, module, method):
            if source and call.omits({parameter}):
                return SourceLine.at(source.file, call.node.lineno)
    return None


def parts_given(module: nn.Module, word: str) -> Iterator[tuple[nn.Module, str]]:
    """Yield the parts that a module's methods call, each with a parameter that is given and has a word in its name."""
    for method in methods_of(module):
        source = parsed(method)
        for call in () if source is None else _resolved_calls(source.tree, module, method):
            if isinstance(call.callee, nn.Module):
                yield from ((call.callee, it) for it in sorted(call.given()) if word in it)


def functions_given(target: Callable[..., Any], step: Step) -> Iterator[tuple[FunctionType, str]]:
    """Yield the functions that a target calls with the variable of a step, each with the parameter that gets it.

    Args:
        target: A module or a function.
        step: A step of its own function, or of a method of one of its parts.
    """
    variable = step.name.partition("·")[0]
    modules = target.modules() if isinstance(target, nn.Module) else ()
    methods = [(part, function) for part in modules for function in methods_of(part)]
    for module, function in methods or [(None, it) for it in own_functions_of(target)]:
        source = parsed(function) if function.__qualname__ == step.function else None
        for call in () if source is None else _resolved_calls(source.tree, module, function):
            parameter = call.parameter_of({variable})
            callee = getattr(call.callee, "forward", call.callee)
            callee = getattr(callee, "__func__", callee)
            if parameter is not None and inspect.isfunction(callee):
                yield callee, parameter


def parameter_is_read(function: FunctionType, parameter: str) -> bool:
    """Check whether a function's source reads a parameter, as `locals()` does; True if there is no source."""
    source = parsed(function)
    if source is None:
        return True
    read = {
        it.id for it in source.nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Load)
    }
    return not read.isdisjoint({parameter, "locals"})


def _call_omitting(
    target: Callable[..., Any], argument: str, names: Collection[str], depth: int, beside: bool
) -> SourceLine | None:
    module = target if isinstance(target, nn.Module) else None
    function = getattr(target, "forward", target)
    source = parsed(function) if depth and not _is_from_torch(function) else None
    if source is None:
        return None
    variables = _derived(source.tree, argument)
    calls = list(_resolved_calls(source.tree, module, inspect.unwrap(function)))
    for call in calls:
        parameter = call.parameter_of(variables)
        inner = parameter and _call_omitting(call.callee, parameter, names, depth - 1, beside)
        if inner:
            return inner
    if not beside and any(call.parameter_of(variables) for call in calls):
        return None
    omitting = [call for call in calls if call.omits(names)]
    given_none = [line for call in omitting if (line := call.line_giving_none(names)) is not None]
    line = min(given_none or (call.node.lineno for call in omitting), default=None)
    return None if line is None else SourceLine.at(source.file, line)


def _is_from_torch(function: Callable[..., Any]) -> bool:
    return (getattr(function, "__module__", None) or "").partition(".")[0] == "torch"


def _derived(tree: ast.AST, argument: str) -> set[str]:
    """Return the names of an argument and of the variables that are computed from it.

    In `x = block(x, mask)`, it is not x that is computed from the mask.
    """
    variables = {argument}
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in sorted(assignments, key=lambda node: node.lineno):
        if _mentions(node.value, variables):
            targets = {it.id for it in node.targets if isinstance(it, ast.Name)}
            variables |= {name for name in targets if not _mentions(node.value, {name})}
    return variables


def _mentions(expression: ast.expr, variables: Collection[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in variables for node in ast.walk(expression))


def _parameters(callee: Callable[..., Any]) -> list[str]:
    """Return the names of a module's or function's parameters, `self` left out."""
    return _signature(getattr(callee, "forward", callee))


def _signature(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of a function or a constructor."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a built-in
        return []


def _resolved_calls(
    tree: ast.AST, module: nn.Module | None, function: Callable[..., Any]
) -> Iterator[_Call]:
    """Yield the calls in a function's source whose callee is known, in the order of the lines."""
    loops = dict(_loop_variables(tree))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda node: node.lineno):
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "forward":
            called = called.value  # a module's forward runs when the module is called
        match called:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                callee = getattr(module, name, None)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                callee = _first(getattr(module, name, None))
            case ast.Name(id=name) if name in loops:
                callee = _first(getattr(module, loops[name], None))
            case ast.Name(id=name):
                callee = getattr(function, "__globals__", {}).get(name)
            case _:
                callee = None
        if callable(callee) and (not isinstance(callee, type) or is_dataclass(callee)):
            yield _Call(node, callee)


def _loop_variables(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each variable of a loop over `self.blocks`, with the attribute's name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.For | ast.comprehension):
            continue
        attributes = [
            it.attr
            for it in ast.walk(node.iter)
            if isinstance(it, ast.Attribute)
            and isinstance(it.value, ast.Name)
            and it.value.id == "self"
        ]
        for target in ast.walk(node.target):
            if isinstance(target, ast.Name) and attributes:
                yield target.id, attributes[0]


def _first(modules: object) -> object:
    """Return the first of a list of modules."""
    return next(iter(modules), None) if isinstance(modules, nn.ModuleList) else None
