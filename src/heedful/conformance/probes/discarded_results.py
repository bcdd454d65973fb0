"""Probe: no line computes something and throws it away."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from torch import nn
from torch.nn.modules.dropout import _DropoutNd as Dropout

from heedful.conformance.calling.target import is_from_torch
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import parsed
from heedful.conformance.reporting.finding import ANY_CALL, Finding


@probe("context-wrong", "projection-unused", "dropout-unused")
def discarded_results(evidence: Evidence) -> Iterator[Finding]:
    """Look for lines that are a sum, a product or the call of one of PyTorch's layers, and nothing more."""
    yield from islice(discarded_results_in(evidence.subject.module), 1)


def discarded_results_in(module: nn.Module | None) -> Iterator[Finding]:
    """Yield findings on lines of a module's classes that compute something and throw it away."""
    parts = {type(part): part for part in (() if module is None else module.modules())}
    sources = ((parsed(cls), part) for cls, part in parts.items() if not is_from_torch(part))
    for source, part in sources:
        for statement in () if source is None else source.statements():
            found = _discarded(statement, part)
            if source is not None and found is not None:
                name, what = found
                proof = f"This line computes {what}, and nothing takes the result."
                place = source.line_of(statement)
                yield Finding(name, "bug", proof, ANY_CALL, place, "Assign it: x = …")


def _discarded(statement: ast.stmt, part: nn.Module) -> tuple[str, str] | None:
    """Return the finding on a statement whose result is lost, and what it computes; None if there is none."""
    match statement:
        case ast.Expr(value=ast.BinOp(op=ast.Add() | ast.Sub())):
            return "context-wrong", "a sum"
        case ast.Expr(value=ast.BinOp(op=ast.Mult() | ast.Div() | ast.MatMult())):
            return "context-wrong", "a product"
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name))):
            layer = getattr(part, name, None)
            acts_elsewhere = getattr(layer, "inplace", False) or not isinstance(layer, nn.Module)
            if acts_elsewhere or not is_from_torch(layer):
                return None
            finding = "dropout-unused" if isinstance(layer, Dropout) else "projection-unused"
            return finding, f"the result of {name}"
    return None
