"""Statements that number the cells of a grid: each coordinate times the number of cells behind it."""

from __future__ import annotations

import ast

from heedful.conformance.recording.source import SourceLine, names_in, parsed_file


def stride_line(definition: SourceLine) -> SourceLine | None:
    """Return the first line that multiplies a part of a coordinate tensor on the way to a definition.

    Args:
        definition: The line that keeps the numbers, in the function that makes them.
    """
    source = parsed_file(definition.file)
    if source is None:
        return None
    functions = (it for it in source.statements() if isinstance(it, ast.FunctionDef))
    around = [it for it in functions if it.lineno <= definition.line <= (it.end_lineno or 0)]
    if not around:
        return None
    statements = [it for it in ast.walk(around[-1]) if isinstance(it, ast.stmt)]
    earlier = [it for it in statements if it.lineno <= definition.line]
    found, wanted = None, set[str]()
    for statement in sorted(earlier, key=lambda it: it.lineno, reverse=True):
        if statement.lineno == definition.line:
            wanted |= _read(statement)
        elif wanted.intersection(_assigned(statement)):
            wanted |= _read(statement)
            found = statement if _multiplies_part(statement) else found
    return None if found is None else source.line_of(found)


def _assigned(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Assign(targets=targets):
            return names_in(targets)
        case ast.AugAssign(target=target):
            return names_in([target])
    return set()


def _read(statement: ast.stmt) -> set[str]:
    return {it.id for it in ast.walk(statement) if isinstance(it, ast.Name)} - {"self", "torch"}


def _multiplies_part(statement: ast.stmt) -> bool:
    """Check for a product of which one factor is a part of a tensor, such as `coordinates[..., 0]`."""
    match statement:
        case ast.AugAssign(target=ast.Subscript(), op=ast.Mult()):
            return True
    products = (it for it in ast.walk(statement) if isinstance(it, ast.BinOp))
    return any(
        isinstance(it.op, ast.Mult) and any(map(_is_part, (it.left, it.right))) for it in products
    )


def _is_part(node: ast.expr) -> bool:
    """Check for `coordinates[..., 0]`, with a slice or an ellipsis, unlike a size of a window."""
    return isinstance(node, ast.Subscript) and any(
        isinstance(it, ast.Slice) or (isinstance(it, ast.Constant) and it.value is Ellipsis)
        for it in ast.walk(node.slice)
    )
