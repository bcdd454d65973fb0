"""Probe: every name that the target's code reads exists, also on lines that no call of the check reaches."""

from __future__ import annotations

import ast
import builtins
import dis
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType

from torch.nn import functional

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine, imported_names, parsed_file
from heedful.conformance.recording.target_source import own_functions_of, with_functions_called
from heedful.conformance.reporting.finding import ANY_CALL, Finding


@probe("undefined-or-global-name")
def undefined_names(evidence: Evidence) -> Iterator[Finding]:
    """Search for a name that the file neither assigns nor imports, such as np where numpy is not imported."""
    return undefined_names_in(evidence.subject.callee)


def undefined_names_in(target: Callable[..., object]) -> Iterator[Finding]:
    """Yield the finding on the first name in a target's code that exists nowhere.

    A missing class or function is a suspicion: an excerpt of a file may have been made without it. One of PyTorch would
    have been imported in any case.
    """
    for function in with_functions_called(own_functions_of(target)):
        for name, place in _undefined(function):
            of_excerpt = _is_called(name, place) and not hasattr(functional, name)
            yield Finding(
                "undefined-or-global-name",
                "suspicious" if of_excerpt else "bug",
                f"Nothing in the file defines {name!r}: the line raises NameError as soon as it runs.",
                ANY_CALL,
                place,
                "Import it, or use the name that is meant.",
            )
            return


def _undefined(function: FunctionType) -> Iterator[tuple[str, SourceLine]]:
    """Yield the names that a function reads and that exist nowhere, each with its line."""
    file = function.__code__.co_filename
    source = parsed_file(file)
    if source is None or not source.tree.body:
        return
    set_later = {name for it in source.nodes if isinstance(it, ast.Global) for name in it.names}
    existing = {*vars(builtins), *function.__globals__, *_defined_outside_functions(source.tree)}
    existing |= set_later
    codes = list(_codes(function.__code__))
    if any("NameError" in code.co_names for code in codes):
        return  # it is prepared for missing names
    for code in codes:
        for instruction in dis.get_instructions(code):
            line = instruction.positions and instruction.positions.lineno
            if instruction.opname == "LOAD_GLOBAL" and instruction.argval not in existing and line:
                yield instruction.argval, SourceLine.at(file, line)


def _is_called(name: str, place: SourceLine) -> bool:
    """Check whether a line calls what a name stands for."""
    source = parsed_file(place.file)
    calls = [it for it in source.nodes if isinstance(it, ast.Call)] if source is not None else []
    called = (it.func for it in calls if it.lineno == place.line)
    return any(isinstance(it, ast.Name) and it.id == name for it in called)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions and comprehensions within it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _defined_outside_functions(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file gives a value in any of its branches, such as those of `if __name__ == …`."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                yield name
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                yield name
                continue
        yield from imported_names(node)
        nodes += ast.iter_child_nodes(node)
