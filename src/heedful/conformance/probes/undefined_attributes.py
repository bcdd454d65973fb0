"""Probe: every attribute that the target's code reads exists, also on lines that no call of the check reaches."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import chain, islice
from types import FunctionType, ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import (
    ParsedSource,
    SourceLine,
    is_own_attribute,
    parsed,
    parsed_file,
)
from heedful.conformance.recording.target_source import own_functions_of, with_functions_called
from heedful.conformance.reporting.finding import ANY_CALL, Finding

OWNERS = (Tensor, nn.Module, torch, functional, dict, list, set, str, bytes, int, float)
"""What may have a method of another name than those of tensors."""

ASKING: re.Pattern[str] = re.compile(r"version|hasattr|available|has_|is_torch")
"""What conditions read, in lower case, that are about what this machine's libraries have."""

SIMILARITY = 0.85  # difflib's ratio: "tranpose" and "transpose" have 0.94


@probe("undefined-or-global-name")
def undefined_attributes(evidence: Evidence) -> Iterator[Finding]:
    """Search for a method that tensors do not have, an attribute that nothing makes, a variable without a value."""
    functions = list(with_functions_called(own_functions_of(evidence.subject.callee)))
    found = chain(
        _misspelt_methods(functions),
        missing_in_libraries(evidence.subject.callee),
        _missing_attributes(evidence.subject.module),
        _unassigned(functions),
    )
    yield from islice(found, 1)


def _finding(said: str, error: str, place: SourceLine, remedy: str) -> Finding:
    proof = f"{said}: the line raises {error} as soon as it runs."
    return Finding("undefined-or-global-name", "bug", proof, ANY_CALL, place, remedy)


def _misspelt_methods(functions: Iterable[FunctionType]) -> Iterator[Finding]:
    """Yield a finding on each method that no tensor has, but for one letter, and that the file does not define."""
    for function in functions:
        source = parsed(function)
        file = None if source is None else parsed_file(source.file)
        if source is None or file is None:
            continue
        for node in source.nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr=name, value=owner)) if not _is_self(owner):
                    meant = _method_meant(name)
                    if meant and name not in _names_made(file):
                        place = SourceLine.at(source.file, node.func.end_lineno or node.lineno)
                        yield _finding(
                            f"Tensors have no method {name}()",
                            "AttributeError",
                            place,
                            f"Call {meant}().",
                        )


def missing_in_libraries(target: Callable[..., object]) -> Iterator[Finding]:
    """Yield a finding on each name that a library does not have, such as softmax in torch.functional.

    What code asks first, or is prepared for, may be about other versions of the library.
    """
    for function in with_functions_called(own_functions_of(target)):
        source = parsed(function)
        local = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        nodes = [] if source is None else [*_unconditional(source.tree)]
        for node in (it for it in nodes if isinstance(it, ast.Attribute)):
            alias, *names = ast.unparse(node).split(".")
            library = None if alias in local else function.__globals__.get(alias)
            *inner, name = names or [""]
            for it in inner:
                library = getattr(library, it, None)
            if type(library) is not ModuleType or hasattr(library, name):
                continue
            owner = next((it for it in (functional, torch) if hasattr(it, name)), None)
            yield _finding(
                f"{library.__name__} has no {name!r}",
                "AttributeError",
                SourceLine.at(function.__code__.co_filename, node.lineno),
                "Look it up in the documentation."
                if owner is None
                else f"Call {owner.__name__}.{name}.",
            )


def _unconditional(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree outside of try statements, and of conditions about versions and what exists."""
    for node in ast.iter_child_nodes(tree):
        asks = isinstance(node, ast.If | ast.IfExp) and ASKING.search(
            ast.unparse(node.test).lower()
        )
        if not asks and not isinstance(node, ast.Try):
            yield node
            yield from _unconditional(node)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@cache
def _method_meant(name: str) -> str:
    """Return the method of tensors that a name differs from by little; "" if it is one, or resembles none."""
    if any(hasattr(it, name) for it in OWNERS) or len(name) < 4:
        return ""
    close = difflib.get_close_matches(name, dir(Tensor), n=1, cutoff=SIMILARITY)
    same_ends = [it for it in close if it[:2] == name[:2] and "_" not in (it[-1], name[-1])]
    return next(iter(same_ends), "")


@lru_cache(maxsize=256)  # as many as sources are kept
def _names_made(source: ParsedSource) -> frozenset[str]:
    """Return the names of functions, attributes, arguments and texts of a file, and those that it imports."""
    names: set[str] = set()
    for node in source.nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.Constant(value=str(name)) | ast.alias(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return frozenset(names)


def _missing_attributes(module: nn.Module | None) -> Iterator[Finding]:
    """Yield a finding on each attribute that a module's classes read, and that it lacks and no file of them makes.

    A class of another file is a framework's, which may give its attributes to modules from outside.
    """
    for part in () if module is None else module.modules():
        classes = [it for it in type(part).__mro__ if not it.__module__.startswith("torch.")]
        if any("__getattr__" in vars(cls) for cls in classes):
            continue
        sources = [it for cls in classes if (it := parsed(cls)) is not None]
        files = [it for source in sources if (it := parsed_file(source.file)) is not None]
        made = frozenset[str]().union(*map(_names_made, files))
        for source in (it for it in sources if it.file == sources[0].file):
            for node in source.nodes:
                match node:
                    case ast.Attribute(attr=name, ctx=ast.Load()) if is_own_attribute(node, name):
                        if not hasattr(part, name) and name not in made:
                            yield _finding(
                                f"Nothing gives {type(part).__name__} an attribute {name!r}",
                                "AttributeError",
                                SourceLine.at(source.file, node.lineno),
                                "Make it in the constructor, or read the one that is meant.",
                            )


def _unassigned(functions: Iterable[FunctionType]) -> Iterator[Finding]:
    """Yield a finding on each variable whose only assignment reads it: `x = self.pool(x)`, without any other x."""
    for function in functions:
        source = parsed(function)
        code = function.__code__
        if source is None or not isinstance(source.tree.body[0], ast.FunctionDef):
            continue
        stores = [
            it.id
            for it in source.nodes
            if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)
        ]
        parameters = inspect.signature(function).parameters
        for node in source.nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                    stores.count(name) == 1
                ):
                    read = {it.id for it in ast.walk(value) if isinstance(it, ast.Name)}
                    if name in read and name in code.co_varnames and name not in parameters:
                        said = f"{name!r} has no value before this line, which reads it"
                        place = source.line_of(node)
                        yield _finding(said, "UnboundLocalError", place, "Read what is meant.")
