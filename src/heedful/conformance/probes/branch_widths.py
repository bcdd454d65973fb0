"""Probe: the two branches of a condition build the same layer with its widths in the same order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine, parsed
from heedful.conformance.recording.target_source import own_functions_of
from heedful.conformance.reporting.finding import ANY_CALL, Finding


class Layer(NamedTuple):
    """The statement that builds a layer, and its widths as they are written: of its inputs, and of its outputs."""

    statement: ast.Assign
    widths: tuple[str, str]


Layers = dict[str, Layer]


@probe("crashes")
def branch_widths(evidence: Evidence) -> Iterator[Finding]:
    """Compare the layers that a constructor builds with an option with those without it, such as Linear and Conv2d."""
    for function in own_functions_of(evidence.subject.callee):
        source = parsed(function) if function.__name__ == "__init__" else None
        choices: dict[str, tuple[Layers, Layers]] = {}
        for node in () if source is None else source.nodes:
            if isinstance(node, ast.If):
                with_it, without = choices.setdefault(ast.unparse(node.test), ({}, {}))
                with_it |= _layers(node.body)
                without |= _layers(node.orelse)
        for condition, branches in choices.items():
            for layer in _swapped(*branches) if source is not None else ():
                assert source is not None
                yield _finding(source.line_of(layer.statement), layer, condition)
                return


def _finding(place: SourceLine, layer: Layer, condition: str) -> Finding:
    first, second = layer.widths
    return Finding(
        "crashes",
        "bug",
        f"{ast.unparse(layer.statement.targets[0])} maps {first} to {second} here, and {second} to {first} in the "
        f"other branch of `if {condition}`: with unequal widths one of them raises an exception.",
        ANY_CALL,
        place,
        f"Build it with {second}, {first}, as in the other branch.",
    )


def _swapped(first: Layers, second: Layers) -> Iterator[Layer]:
    """Yield the layers whose widths are in another order in one branch than in the other.

    Of the two it is the one that has the order of another layer of its branch, which maps the other way there.
    """
    for name in first.keys() & second.keys():
        if first[name].widths == second[name].widths[::-1]:
            for branch in (first, second):
                others = (it.widths for also, it in branch.items() if also != name)
                if branch[name].widths in others:
                    yield branch[name]


def _layers(statements: Sequence[ast.stmt]) -> Layers:
    """Return the attributes to which statements give layers of two widths that are variables, by name."""
    found: Layers = {}
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                calls = [it for it in ast.walk(value) if isinstance(it, ast.Call)]
                widths = next((it.args[:2] for it in calls if len(it.args) > 1), [])
                named = [
                    ast.unparse(it) for it in widths if isinstance(it, ast.Name | ast.Attribute)
                ]
                if len({*named}) == 2:
                    found[name] = Layer(statement, (named[0], named[1]))
    return found
