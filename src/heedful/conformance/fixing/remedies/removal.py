"""Remedies that leave something out: a step, a term, a condition or a statement that should not be there."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from heedful.conformance.fixing.remedies.remedy import replaced
from heedful.conformance.fixing.site import Edit, Site
from heedful.conformance.fixing.syntax import called, code, names_in

IN_PLACE = (cst.AugAssign, cst.Expr)


def attached(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Keep a tensor in autograd."""
    match node:
        case cst.Call(func=cst.Attribute(value=value)) if called(node) in ("detach", "detach_"):
            yield code(value)
        case cst.Attribute(value=value, attr=cst.Name("data")):
            yield code(value)


def without_step(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Leave out the call of a tensor's method or of a function of tensors; modules stay."""
    match node:
        case cst.Call(func=cst.Attribute(value=value)) if site.is_method(node):
            if called(node) == "setdefault" and len(node.args) == 2:
                yield code(node.args[1].value)
            elif not code(value).startswith("self"):
                yield code(value)
        case cst.Call(args=[first, *_]) if code(node.func).startswith(("torch.", "F.")):
            yield code(first.value)


def without_term(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Leave out a term, a factor or a condition."""
    match node:
        case cst.BinaryOperation(operator=operator, left=left, right=right):
            if not isinstance(operator, (cst.MatrixMultiply, cst.Power, cst.FloorDivide)):
                yield code(left)
                yield code(right)
        case cst.IfExp(body=body, orelse=orelse):
            yield code(body)
            yield code(orelse)


def without_last_term(site: Site) -> Iterator[Edit]:
    """Leave out a term or a factor, the last one first: what a statement reads may come from its beginning."""
    for node in reversed(site.expressions):
        for replacement in without_term(node, site):
            yield {node: replaced(node, replacement, site)}


def without_index(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Leave out an index."""
    if isinstance(node, cst.Subscript) and not code(node.value).endswith("shape"):
        yield code(node.value)


def without_reassignment(site: Site) -> Iterator[Edit]:
    """Leave out a statement that computes a variable from itself."""
    match site.small:
        case cst.Assign(targets=[cst.AssignTarget(cst.Name(value=name))], value=value) if (
            name in names_in(value)
        ):
            yield {site.statement: cst.RemoveFromParent()}


def without_statement(site: Site) -> Iterator[Edit]:
    """Leave out a statement that changes something in place, or another one of several on a line."""
    if not isinstance(site.statement, cst.SimpleStatementLine):
        return
    smalls = site.statement.body
    if len(smalls) > 1:
        for small in sorted(smalls, key=lambda it: not isinstance(it, IN_PLACE)):
            kept = [part for part in smalls if part is not small]
            last = kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            yield {site.statement: site.statement.with_changes(body=[*kept[:-1], last])}
    elif isinstance(smalls[0], IN_PLACE):
        yield {site.statement: cst.RemoveFromParent()}
