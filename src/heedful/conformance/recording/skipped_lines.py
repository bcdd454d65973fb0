"""Lines that a run left out, behind a return or in a branch: it says nothing about what these would have read."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import groupby
from typing import Any

from heedful.conformance.recording.assignments import assigns, reads
from heedful.conformance.recording.source import (
    SourceLine,
    contains_line,
    names_in,
    nodes_of,
    parsed_file,
)
from heedful.observation import Step


def returned_early(steps: Iterable[Step]) -> bool:
    """Check whether a function of a run returned within a branch, and other lines behind it compute something."""
    by_function = sorted(steps, key=_function)
    for (file, name), own in groupby(by_function, key=_function):
        last = max((step.line for step in own if step.line is not None), default=None)
        if last is not None and any(_skips(it, last) for it in _definitions(file, name, last)):
            return True
    return False


def _function(step: Step) -> tuple[str, str]:
    return step.file or "", step.function


def _definitions(file: str, name: str, line: int) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a name in a file that contain a line."""
    source = parsed_file(file)
    for node in () if source is None else source.statements():
        is_named = isinstance(node, ast.FunctionDef) and node.name == name.rpartition(".")[2]
        if isinstance(node, ast.FunctionDef) and is_named and contains_line(node, line):
            yield node


def _skips(function: ast.FunctionDef, last: int) -> bool:
    """Check whether the last line that computed something is in a branch that returns, with other lines behind it."""
    for index, statement in enumerate(function.body):
        if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Return):
            continue
        if statement.lineno <= last <= (statement.body[-1].end_lineno or 0):
            later = function.body[index + 1 :]
            return any(isinstance(node, ast.Call) for it in later for node in ast.walk(it))
    return False


def returned_nothing(function: Callable[..., Any], steps: Iterable[Step]) -> bool:
    """Check whether a function of a run may have returned None before other lines that compute something.

    None of its own steps comes from behind a branch that returns None.
    """
    definition = next((it for it in nodes_of(function) if isinstance(it, ast.FunctionDef)), None)
    body = [] if definition is None else definition.body
    last = max((it.line or 0 for it in steps if it.function == function.__qualname__), default=0)
    for index, statement in enumerate(body):
        if isinstance(statement, ast.If) and _is_return_of_none(statement.body[-1]):
            later = (it for after in body[index + 1 :] for it in ast.walk(after))
            return last < statement.lineno and any(map(_computes, later))
    return False


def _is_return_of_none(statement: ast.stmt) -> bool:
    match statement:
        case ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)):
            return True
    return False


def _computes(node: ast.AST) -> bool:
    """Check for a product of matrices, and for a call as `scores.sum(1)` or `F.relu(scores)`."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.Call(func=ast.Attribute(value=value)):
            return "self" not in names_in([value])
    return False


def is_read_in_idle_branch(steps: Iterable[Step], step: Step) -> bool:
    """Check whether the variable of a step's result is read in a branch of its function in which nothing ran.

    A variable that is assigned more than once may hold something else there.
    """
    ran = [it.line for it in steps if it.file == step.file]
    for function in _definitions(step.file or "", step.function, step.line or 0):
        statements = [it for it in ast.walk(function) if isinstance(it, ast.stmt)]
        if sum(assigns(it, step.name) for it in statements) != 1:
            continue
        branches = [it for it in statements if isinstance(it, ast.If)]
        for block in (block for it in branches for block in (it.body, it.orelse) if block):
            nothing_ran = not any(contains_line(it, line) for it in block for line in ran)
            if nothing_ran and any(reads(it, step.name) for it in block):
                return True
    return False


def line_skipping(words: re.Pattern[str], file: str, ran: Container[int]) -> SourceLine | None:
    """Return the condition by which a function of a file returned before statements that contain some words.

    Args:
        words: What the skipped statements contain, and the condition's branch does not.
        file: The file.
        ran: The numbers of its lines that ran.
    """
    source = parsed_file(file)
    for function in () if source is None else source.statements():
        body = function.body if isinstance(function, ast.FunctionDef) else []
        for index, statement in enumerate(body):
            if not isinstance(statement, ast.If) or not isinstance(statement.body[-1], ast.Return):
                continue
            skipped = "\n".join(map(ast.unparse, body[index + 1 :]))
            if statement.body[-1].lineno in ran and words.search(skipped):
                made = [it for it in body[:index] if _assigns_name(it, statement.test)]
                return source.line_of((made or [statement])[-1]) if source is not None else None
    return None


def _assigns_name(statement: ast.stmt, test: ast.expr) -> bool:
    """Check whether a statement assigns the variable that a condition consists of."""
    return isinstance(test, ast.Name) and assigns(statement, test.id)
