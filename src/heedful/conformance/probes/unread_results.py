"""Probe: some code reads what a layer computes, also on lines that never ran."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from itertools import islice

from torch import nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import VIEWS
from heedful.conformance.recording.source import ParsedSource, parsed
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding

SPLITS: tuple[str, ...] = ("chunk", "split", "unbind")


@probe("projection-unused")
def unread_results(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Look for results of layers that no code reads, where no step ran: others show what their steps lead to."""
    read = (source for step in evidence.baseline.trace for source in step.inputs)
    names = (source.name for source in read if source.kind == "parameter")
    called = frozenset(part for name in names for part in name.split(".")[:-1])
    called -= {*_positions(evidence.subject.module)}
    yield from islice(unread_results_in(evidence.subject.module, called), 1)


def _positions(module: nn.Module | None) -> Iterator[str]:
    """Yield the attributes of a module that are embeddings of positions: other probes do not look at these."""
    named = () if module is None else module.named_modules()
    yield from (
        name.split(".")[-1] for name, it in named if isinstance(it, nn.Embedding) and "pos" in name
    )


def unread_results_in(
    module: nn.Module | None, called: Set[str] = frozenset()
) -> Iterator[Finding]:
    """Yield findings on results of layers, or on parts of one, that go to variables which no code reads.

    Args:
        module: The module.
        called: Attributes whose layers are left out.
    """
    parts = () if module is None else module.modules()
    classes = dict.fromkeys(type(part) for part in parts)
    for cls in (it for it in classes if not it.__module__.startswith("torch.")):
        source = parsed(cls)
        layers = {name for base in cls.__mro__ for name in _layers_of(base)} - called
        for method in () if source is None else source.statements():
            if source is not None and isinstance(method, ast.FunctionDef):
                yield from _unread_in(method, layers, source)


def _layers_of(cls: type) -> Iterator[str]:
    """Yield the attributes to which a class assigns what it builds, as `self.gate = nn.Linear(…)`."""
    source = parsed(cls) if not cls.__module__.startswith(("torch.", "builtins")) else None
    for node in () if source is None else source.nodes:
        if isinstance(node, ast.Assign) and any(map(_is_built, ast.walk(node.value))):
            targets = (it for target in node.targets for it in ast.walk(target))
            yield from (it.attr for it in targets if isinstance(it, ast.Attribute))


def _is_built(node: ast.AST) -> bool:
    """Check whether a value is made by a class, by its name."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name[:1].isupper()
    return False


def _unread_in(
    method: ast.FunctionDef, layers: set[str], source: ParsedSource
) -> Iterator[Finding]:
    nodes = list(ast.walk(method))
    variables = [node for node in nodes if isinstance(node, ast.Name)]
    read = {node.id for node in variables if not isinstance(node.ctx, ast.Store)}
    if "locals" in read:
        return
    for statement in (node for node in nodes if isinstance(node, ast.Assign)):
        assigned = _variables(statement)
        layer, is_split = _layer_called(statement.value)
        unread = [name for name in assigned if name not in read]
        named = [name for name in unread if not name.startswith("_")]
        if layer in layers and named and (is_split or len(unread) == len(assigned)):
            yield Finding(
                "projection-unused",
                "bug",
                f"No code reads {named[0]!r}, which {layer} computes.",
                ANY_CALL,
                source.line_of(_joining_twice(method, statement) or statement),
            )


def _joining_twice(method: ast.FunctionDef, after: ast.stmt) -> ast.stmt | None:
    """Return the first statement after another one that joins a variable with itself, as `cat([x, x])`."""
    later = (
        it for it in ast.walk(method) if isinstance(it, ast.Assign) and it.lineno > after.lineno
    )
    for statement in sorted(later, key=lambda it: it.lineno):
        for node in ast.walk(statement):
            match node:
                case ast.List(elts=[ast.Name(id=first), ast.Name(id=second)]) if first == second:
                    return statement
    return None


def _variables(statement: ast.Assign) -> list[str]:
    """Return the variables that an assignment has as its targets; none if there are other targets."""
    match statement.targets:
        case [ast.Name(id=name)]:
            return [name]
        case [ast.Tuple(elts=elements)]:
            names = [it.id for it in elements if isinstance(it, ast.Name)]
            return names if len(names) == len(elements) else []
    return []


def _layer_called(value: ast.expr) -> tuple[str, bool]:
    """Return the layer of a call such as `self.gate(x)`, and whether its result is split: "" if it is another value."""
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Call() as inner, attr=method)) if method in (
            *SPLITS,
            *VIEWS,
        ):
            return _layer_called(inner)[0], method in SPLITS
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=layer)):
            return layer, False
    return "", False
