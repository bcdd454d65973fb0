"""Probe: operations on positions and on padding are in the order that is meant."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import ParsedSource, SourceLine, parsed
from heedful.conformance.recording.target_source import own_functions_of, with_functions_called
from heedful.conformance.reporting.finding import ANY_CALL, Finding

SUMS, SIGNS = ("sum", "reduce_sum"), ("sign", "ne", "gt", "bool")


@probe("positions-wrong", "mask-inverted")
def operation_order(evidence: Evidence) -> Iterator[Finding]:
    """Search for two well-known slips: `a / b // 2` within an exponential, and `sign(abs(sum(x)))` as a mask."""
    functions = with_functions_called(own_functions_of(evidence.subject.callee))
    for source in map(parsed, functions):
        for node in () if source is None else source.nodes:
            if source is None or not isinstance(node, ast.Call):
                continue
            if _name(node) == "exp":
                yield from _rounded_exponents(source, node)
            elif _name(node) in SIGNS:
                yield from _cancelled_sums(source, node)


def _rounded_exponents(source: ParsedSource, call: ast.Call) -> Iterator[Finding]:
    """Yield the finding on a quotient that is rounded down although a part of it was meant to be."""
    for node in ast.walk(call):
        match node:
            case ast.BinOp(
                left=ast.BinOp(op=ast.Div(), right=divisor), op=ast.FloorDiv(), right=factor
            ):
                parts = ast.unparse(divisor), ast.unparse(factor)
                yield Finding(
                    "positions-wrong",
                    "bug",
                    f"`/ {parts[0]} // {parts[1]}` divides twice and rounds the quotient itself down, so that the "
                    "frequencies do not fall from 1 to 1/10000.",
                    ANY_CALL,
                    SourceLine.at(source.file, node.lineno),
                    f"Divide by ({parts[0]} // {parts[1]}).",
                )


def _cancelled_sums(source: ParsedSource, call: ast.Call) -> Iterator[Finding]:
    """Yield the finding on a sign of an absolute sum, which is 0 as well where entries cancel."""
    inner = _argument(call)
    summed = _argument(inner) if inner is not None and _name(inner) in ("abs", "absolute") else None
    if summed is not None and _name(summed) in SUMS:
        yield Finding(
            "mask-inverted",
            "bug",
            "The mask hides the tokens whose entries sum to 0. Those of a real token may cancel, so that it is hidden: "
            "the absolute value is taken of the sum, and not of the entries.",
            ANY_CALL,
            SourceLine.at(source.file, call.lineno),
            "Take the absolute values first: x.abs().sum(-1) != 0.",
        )


def _name(call: ast.Call) -> str:
    """Return the name by which a function or a method is called."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _argument(call: ast.Call) -> ast.Call | None:
    """Return the call whose result is the first operand of another one."""
    candidates = [*call.args[:1]]
    if isinstance(call.func, ast.Attribute):
        candidates.append(call.func.value)
    return next((it for it in candidates if isinstance(it, ast.Call)), None)
