"""Variables that statements of one form make, such as `k = self.key(x)` beside `q = self.query(x)`."""

from __future__ import annotations

import ast

from heedful.conformance.recording.assignments import variable_is_read_after
from heedful.conformance.recording.source import SourceLine, contains_line, parsed_file
from heedful.observation import Step


def are_made_alike(source: str, other: str) -> bool:
    """Check whether two statements `name = …` differ in nothing but variables and attributes of `self`."""
    form = _form(source)
    return form is not None and form == _form(other)


def pairing_siblings(idle: Step) -> SourceLine | None:
    """Return the statement that multiplies two siblings of a step's variable, which nothing reads, by each other.

    The statements that make the siblings come before it.
    """
    place = SourceLine.of(idle)
    source = parsed_file(idle.file or "")
    if place is None or source is None or variable_is_read_after(place, idle.name):
        return None
    functions = (
        it
        for it in source.statements()
        if isinstance(it, ast.FunctionDef) and contains_line(it, place.line)
    )
    function = max(functions, key=lambda it: it.lineno, default=None)
    siblings: set[str] = set()
    for statement in [] if function is None else function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if are_made_alike(
                ast.unparse(statement), idle.source
            ):
                siblings.add(name)
                continue
        for node in ast.walk(statement):
            if siblings.issuperset(pair := _factors(node)) and len({*pair}) == 2:
                return source.line_of(statement)
    return None


def _factors(node: ast.AST) -> tuple[str, ...]:
    """Return the two variables that an expression multiplies by each other; none if it is another expression."""
    match node:
        case ast.BinOp(left=ast.Name(id=one), op=ast.Mult(), right=ast.Name(id=other)):
            return one, other
        case ast.Call(
            func=ast.Attribute(attr="mul" | "multiply"),
            args=[ast.Name(id=one), ast.Name(id=other)],
        ):
            return one, other
    return ()


def _form(source: str) -> str | None:
    """Return a statement `name = …` without the names of variables and attributes; None for another statement."""
    try:
        statements = ast.parse(source.strip()).body
    except SyntaxError:  # the head of a statement with a body
        return None
    match statements:
        case [ast.Assign(targets=[ast.Name()]) as statement]:
            for node in ast.walk(statement):
                match node:
                    case ast.Name(id=name) if name != "self":
                        node.id = "_"
                    case ast.Attribute(value=ast.Name(id="self")):
                        node.attr = "_"
            return ast.dump(statement)
    return None
