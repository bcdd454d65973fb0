"""Statements that call functions and modules, and the values that they pass."""

from __future__ import annotations

import ast
import re
from types import FunctionType
from typing import NamedTuple

from torch import nn

from heedful.conformance.recording.assignments import assigns, overwritten_unread
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import (
    SourceLine,
    contains_line,
    names_in,
    parsed,
    parsed_file,
)
from heedful.conformance.recording.target_source import methods_of
from heedful.observation import Step


def call_site(observation: Observation, step: Step) -> SourceLine | None:
    """Return the line `name = function(…)` that called the function in which a step was made.

    The name is known from the last step that the function made in that call, which the assignment names.
    """
    last_step = step
    for following in observation.trace.steps[step.index + 1 :]:
        if following.function != step.function or (following.line or 0) < (last_step.line or 0):
            break
        last_step = following
    function, variable = step.function.rpartition(".")[2], last_step.name.partition("·")[0]
    source = parsed_file(step.file or "")
    if source is None:
        return None
    for statement in source.statements():
        if isinstance(statement, ast.Assign) and variable in names_in(statement.targets):
            calls = (node for node in ast.walk(statement.value) if isinstance(node, ast.Call))
            if function in names_in(call.func for call in calls):
                return source.line_of(statement)
    return None


def call_line(observation: Observation, module: nn.Module | None, step: Step) -> SourceLine | None:
    """Return the line that called the function in which a step was made, or the part of a module."""
    calls = lines_calling(module, step.module) if module is not None and step.module else []
    return call_site(observation, step) or next(iter(calls), None)


def lines_calling(module: nn.Module, path: str) -> list[SourceLine]:
    """Return the statements that call a part of a module as `self.name(…)`, in the order of the lines.

    Args:
        module: The outermost module.
        path: The path of the part, such as "blocks.0.attn".
    """
    parent, _, name = path.rpartition(".")
    lines: list[SourceLine] = []
    for function in methods_of(module.get_submodule(parent)):
        source = parsed(function)
        for statement in () if source is None else source.statements():
            if source is not None and not hasattr(statement, "body"):
                calls = (it for it in ast.walk(statement) if isinstance(it, ast.Call))
                lines += [source.line_of(statement) for it in calls if _calls_attribute(it, name)]
    return sorted(lines, key=lambda line: line.line)


def line_overwriting_result(module: nn.Module | None, step: Step) -> SourceLine | None:
    """Return the line that gives another value to the variable of a step's result before anything has read it.

    The variable may be that of the result of a part of a module, which the step ends in.
    """
    parts = step.module.split(".") if module is not None and step.module else []
    paths = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    calls = (line for path in paths if module is not None for line in lines_calling(module, path))
    places = (it for it in (SourceLine.of(step), *calls) if it is not None)
    return next((it for it in map(overwritten_unread, places) if it is not None), None)


def _calls_attribute(call: ast.Call, name: str) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            return attribute == name
    return False


def line_reading(module: nn.Module, attribute: str) -> SourceLine | None:
    """Return the last statement of a module's methods, but for its constructor, that reads `self.attribute`."""
    lines: list[SourceLine] = []
    for function in (it for it in methods_of(module) if it.__name__ != "__init__"):
        source = parsed(function)
        for statement in () if source is None else source.statements():
            if source is not None and not hasattr(statement, "body"):
                reads = (it for it in ast.walk(statement) if isinstance(it, ast.Attribute))
                lines += [source.line_of(statement) for it in reads if it.attr == attribute]
    return max(lines, key=lambda line: line.line, default=None)


def line_reading_relative(module: nn.Module, attribute: str) -> SourceLine | None:
    """Return the last statement of a module's methods that reads an attribute with a name like another one's.

    The names begin with the same two words or more, as `qk_norm_groups` and `qk_norm_scale` do.

    Args:
        module: The module.
        attribute: The name of the other attribute, which is not read.
    """
    words = attribute.split("_")
    others = {
        name
        for name in (*vars(module), *(it for it, _ in module.named_children()))
        if name != attribute and len(words) > 2 and name.split("_")[:2] == words[:2]
    }
    found = (line_reading(module, name) for name in others)
    return max((it for it in found if it is not None), key=lambda line: line.line, default=None)


def returns_result(step: Step) -> bool:
    """Check whether the function of a step returns its result, by its own statement or by the name it is given."""
    source = parsed_file(step.file or "")
    functions = (
        it
        for it in ([] if source is None else source.statements())
        if isinstance(it, ast.FunctionDef) and contains_line(it, step.line)
    )
    innermost = max(functions, key=lambda it: it.lineno, default=None)
    if innermost is None:
        return False
    returns = [it for it in ast.walk(innermost) if isinstance(it, ast.Return) and it.value]
    return any(
        contains_line(it, step.line)
        or (isinstance(it.value, ast.Name) and it.value.id == step.name)
        for it in returns
    )


class HandedValue(NamedTuple):
    """The value that a call passes to a parameter.

    Attributes:
        place: The line that assigns the variable which is passed, or else the line of the call that names the value.
        attribute: The path of the module's attribute that it is, such as "attn.scaling"; "" for another value.
    """

    place: SourceLine
    attribute: str


def value_handed_to(
    module: nn.Module | None, step: Step, pattern: re.Pattern[str]
) -> HandedValue | None:
    """Return the value of the parameter that a step reads in a function which a method of a module calls.

    Args:
        module: The outermost module.
        step: The step.
        pattern: What the name of the parameter contains.
    """
    source = parsed_file(step.file or "")
    definition = next(
        (
            node
            for node in (() if source is None else source.statements())
            if isinstance(node, ast.FunctionDef) and node.name == step.function
        ),
        None,
    )
    if definition is None or module is None:
        return None
    taken = [it.arg for it in (*definition.args.args, *definition.args.kwonlyargs)]
    read = [
        name for name in taken if pattern.search(name) and re.search(rf"\b{name}\b", step.source)
    ]
    for path, part in module.named_modules():
        for function in methods_of(part):
            for name in read:
                found = _value_in(function, path, step.function, name, taken.index(name))
                if found is not None:
                    return found
    return None


def call_relying_on_default(step: Step, pattern: re.Pattern[str]) -> SourceLine | None:
    """Return the only call, in a step's file, of the step's function that leaves a parameter at its default.

    Args:
        step: The step.
        pattern: What the name of the parameter contains.
    """
    source = parsed_file(step.file or "")
    nodes = [] if source is None else [*source.nodes]
    named = (it for it in nodes if isinstance(it, ast.FunctionDef) and it.name == step.function)
    definition = next(named, None)
    if definition is None:
        return None
    taken = [it.arg for it in (*definition.args.args, *definition.args.kwonlyargs)]
    wanted = next((name for name in taken if pattern.search(name)), None)
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == step.function
        and not any(isinstance(it, ast.Starred) for it in node.args)
    ]
    if source is None or wanted is None or len(calls) != 1:
        return None
    given = {it.arg for it in calls[0].keywords} | set(taken[: len(calls[0].args)])
    return None if {wanted, None} & given else SourceLine.at(source.file, calls[0].lineno)


def _value_in(
    function: FunctionType, path: str, callee: str, parameter: str, position: int
) -> HandedValue | None:
    """Return the value that a method of a module passes to a parameter of a function."""
    source = parsed(function)
    for call in () if source is None else source.nodes:
        if source is None or not isinstance(call, ast.Call):
            continue
        if not isinstance(call.func, ast.Name) or call.func.id != callee:
            continue
        positional = call.args[position] if position < len(call.args) else None
        keyword = next((it.value for it in call.keywords if it.arg == parameter), None)
        value = positional or keyword
        if value is None:
            return None
        place, variable = SourceLine.at(source.file, value.lineno), ""
        match value:
            case ast.Name(id=variable):
                pass
        made = [it for it in source.statements() if it.lineno < call.lineno]
        made = [it for it in made if isinstance(it, ast.Assign) and assigns(it, variable)]
        if made:
            last = max(made, key=lambda it: it.lineno)
            place, value = source.line_of(last), last.value
        match value:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return HandedValue(place, f"{path}.{name}" if path else name)
        return HandedValue(place, "")
    return None
