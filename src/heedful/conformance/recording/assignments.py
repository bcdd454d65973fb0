"""Statements that assign, read and return variables."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable

from heedful.conformance.recording.source import (
    ParsedSource,
    SourceLine,
    contains_line,
    functions_around,
    kept,
    parsed,
    parsed_file,
)
from heedful.conformance.recording.target_source import own_functions_of
from heedful.observation import Step


def last_return(function: Callable[..., object]) -> SourceLine | None:
    """Return the last line on which a function returns."""
    source = parsed(function)
    if source is None:
        return None
    returns = [node for node in source.statements() if isinstance(node, ast.Return)]
    last = max(returns, key=lambda node: node.lineno, default=None)
    return None if last is None else source.line_of(last)


def last_assignment(target: Callable[..., object], step: Step, variable: str) -> SourceLine | None:
    """Return the last line before a step's line that assigns a local variable of the step's function."""
    lines = [
        source.line_of(node)
        for function in own_functions_of(target)
        if function.__code__.co_qualname == step.function
        if (source := parsed(function)) is not None
        for node in source.statements()
        if assigns(node, variable) and step.line is not None and node.lineno < step.line
    ]
    return max(lines, key=lambda line: line.line, default=None)


def variables_read(file: str, line: int) -> list[str]:
    """Return the local variables that the statement on a line reads, in order."""
    source = parsed_file(file)
    statement = None if source is None else _innermost_at(source, line)
    nodes = () if statement is None else ast.walk(statement)
    read = (it for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Load))
    return list(dict.fromkeys(it.id for it in read))


def variables_read_until(function: Callable[..., object], line: int) -> set[str]:
    """Return the variables that a function may have read once it has reached one of its lines.

    They are those of the statements of its body up to the one that contains the line, with all that this one holds.
    """
    function = function.__func__ if inspect.ismethod(function) else function
    reached = (read for first, read in _variables_by_statement(function) if first <= line)
    return set[str]().union(*reached)


@kept
def _variables_by_statement(function: Callable[..., object]) -> list[tuple[int, set[str]]]:
    """Return the first line of each statement of a function's body, and the variables that it reads."""
    source = parsed(function)
    definition = None if source is None else next(iter(source.tree.body), None)
    body = definition.body if isinstance(definition, ast.FunctionDef) else []
    return [(statement.lineno, _loaded(ast.walk(statement))) for statement in body]


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {it.id for it in nodes if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Load)}


def first_of_slice(step: Step) -> SourceLine | None:
    """Return the line that assigns the variable from which on a step's line cuts, as in `x[first:last]`."""
    source = parsed_file(step.file or "")
    statement = None if source is None or step.line is None else _innermost_at(source, step.line)
    for node in () if statement is None else ast.walk(statement):
        match node:
            case ast.Slice(lower=ast.Name(id=variable)) if source is not None and step.line:
                made = _last_between(source, _first_line(source, step.line), step.line, variable)
                return None if made is None else source.line_of(made)
    return None


def _first_line(source: ParsedSource, line: int) -> int:
    """Return the first line of the innermost function that contains a line."""
    functions = (
        it.lineno
        for it in source.statements()
        if isinstance(it, ast.FunctionDef) and contains_line(it, line)
    )
    return max(functions, default=1)


def variable_is_read_after(place: SourceLine, variable: str) -> bool:
    """Check whether a statement of the same function, below a line, reads a variable."""
    innermost = max(functions_around(place), key=lambda it: it.lineno, default=None)
    return innermost is not None and any(
        isinstance(it, ast.Name)
        and it.id == variable
        and isinstance(it.ctx, ast.Load)
        and it.lineno > place.line
        for it in ast.walk(innermost)
    )


def assignment_before(file: str, line: int, variable: str, first: int) -> SourceLine | None:
    """Return the last line that assigns a variable between the first line of its function and a later line."""
    source = parsed_file(file)
    made = None if source is None else _last_between(source, first, line, variable)
    return None if made is None or source is None else source.line_of(made)


def alias_before(file: str, line: int, first: int) -> SourceLine | None:
    """Return the line `v = k` between two lines that gives a variable which the later one reads; None without one."""
    source = parsed_file(file)
    if source is None:
        return None
    for variable in variables_read(file, line):
        made = _last_between(source, first, line, variable)
        if isinstance(made, ast.Assign) and isinstance(made.value, ast.Name):
            return source.line_of(made)
    return None


def overwritten_unread(place: SourceLine) -> SourceLine | None:
    """Return the line that assigns again the variable of the statement on a line, before anything has read it."""
    source = parsed_file(place.file)
    statement = None if source is None else _innermost_at(source, place.line)
    match statement:
        case ast.Assign(targets=[ast.Name(id=variable)]) if source is not None:
            following = _statements_after(source, statement)
            touching = (it for it in following if assigns(it, variable) or reads(it, variable))
            first = next(touching, None)
            unread = first is not None and assigns(first, variable) and not reads(first, variable)
            return source.line_of(first) if first is not None and unread else None
    return None


def _statements_after(source: ParsedSource, statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements that follow one in its block."""
    for node in source.nodes:
        for _, block in ast.iter_fields(node):
            if isinstance(block, list) and statement in block:
                return block[block.index(statement) + 1 :]
    return []


def overwriting(function: Callable[..., object], parameter: str) -> SourceLine | None:
    """Return the line of a function that assigns a parameter another value without a look at the one it was given.

    A default that is set where the parameter is None is no such line: it is in a branch that reads the parameter.
    """
    source = parsed(function)
    definition = None if source is None else next(iter(source.tree.body), None)
    for statement in definition.body if isinstance(definition, ast.FunctionDef) else ():
        if reads(statement, parameter):
            return None
        if assigns(statement, parameter) and source is not None:
            return source.line_of(statement)
    return None


def compared_for_nothing(function: Callable[..., object], parameter: str) -> SourceLine | None:
    """Return the line of a function that only compares where it should assign, as in `weights[mask] == 0`."""
    source = parsed(function)
    if source is None:
        return None
    for statement in source.statements():
        match statement:
            case ast.Expr(value=ast.Compare() as comparison) if reads(comparison, parameter):
                return source.line_of(statement)
    return None


def left_unused(function: Callable[..., object], parameter: str) -> SourceLine | None:
    """Return the line where a function should use a parameter that nothing reads but its own new value.

    It is the line of that new value, or that of a mask which is None, or the first one of the function.
    """
    source = parsed(function)
    definition = None if source is None else next(iter(source.tree.body), None)
    if source is None or not isinstance(definition, ast.FunctionDef):
        return None
    own = [it for it in source.statements() if assigns(it, parameter)]
    within = {node for it in own for node in ast.walk(it)}
    others = (it for it in ast.walk(definition) if isinstance(it, ast.Name) and it not in within)
    if any(reads(it, parameter) for it in others):
        return None
    of_none = (it for it in source.statements() if _assigns_no_mask(it))
    place = own[-1] if own else next(of_none, None)
    return SourceLine.at(source.file, definition.lineno) if place is None else source.line_of(place)


def _assigns_no_mask(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Constant(value=None)):
            return "mask" in variable
    return False


def reads(node: ast.AST, variable: str) -> bool:
    """Check whether code reads a variable, as `v += 1` does, too."""
    updated = {it.target for it in ast.walk(node) if isinstance(it, ast.AugAssign)}
    names = (it for it in ast.walk(node) if isinstance(it, ast.Name) and it.id == variable)
    return any(isinstance(it.ctx, ast.Load) or it in updated for it in names)


def _last_between(source: ParsedSource, first: int, line: int, variable: str) -> ast.stmt | None:
    """Return the last statement from one line to before another that assigns a variable."""
    made = (it for it in source.statements() if first <= it.lineno < line and assigns(it, variable))
    return max(made, key=lambda it: (it.lineno, it.col_offset), default=None)


def _innermost_at(source: ParsedSource, line: int) -> ast.stmt | None:
    """Return the innermost statement that covers a line."""
    covering = [it for it in source.statements() if it.lineno <= line <= (it.end_lineno or 0)]
    return max(covering, key=lambda it: it.lineno, default=None)


def assigns(statement: ast.stmt, variable: str) -> bool:
    """Check whether a statement assigns a variable, alone or among others, as in `q, k = …`."""
    match statement:
        case ast.Assign(targets=targets):
            pass
        case ast.AnnAssign(target=target, value=ast.expr()):
            targets = [target]
        case _:
            return False
    parts = (part for it in targets for part in (it.elts if isinstance(it, ast.Tuple) else [it]))
    return any(isinstance(it, ast.Name) and it.id == variable for it in parts)
