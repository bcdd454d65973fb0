"""Remedies: functions that propose edits of a statement, the likeliest and nearest to its style first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from heedful.conformance.fixing.site import Edit, Site
from heedful.conformance.fixing.syntax import code

Remedy = Callable[[Site], Iterator[Edit]]

Rewriting = Callable[[cst.BaseExpression, Site], Iterator[str]]
"""A function of an expression in a statement that yields the source of what may stand in its place."""

_OPERATIONS = (
    *(cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.BooleanOperation, cst.IfExp),
)
_ENDS = (cst.Arg, cst.Assign, cst.Return, cst.Expr, cst.Index, cst.Slice, cst.Element, cst.If)
"""What may hold an operation without parentheses."""


def rewriting(*rewritings: Rewriting) -> Remedy:
    """Return a remedy that replaces one expression at a time."""

    def remedy(site: Site) -> Iterator[Edit]:
        for rewrite in rewritings:
            for node in site.expressions:
                for replacement in rewrite(node, site):
                    yield {node: replaced(node, replacement, site)}

    return remedy


def rewriting_all(rewrite: Rewriting) -> Remedy:
    """Return a remedy that replaces all expressions of a statement at once, each by its first replacement."""

    def remedy(site: Site) -> Iterator[Edit]:
        edit: dict[cst.CSTNode, cst.CSTNode] = {}
        for node in site.expressions:
            for replacement in rewrite(node, site):
                edit.setdefault(node, replaced(node, replacement, site))
        if len(edit) > 1:
            yield edit

    return remedy


def rewriting_alike(rewrite: Rewriting) -> Remedy:
    """Return a remedy that replaces all calls in a function that are alike at once, as those of three projections."""

    def remedy(site: Site) -> Iterator[Edit]:
        for call in (it for it in site.expressions if isinstance(it, cst.Call)):
            edit: dict[cst.CSTNode, cst.CSTNode] = {}
            for place in site.block:
                for node in place.expressions:
                    alike = isinstance(node, cst.Call) and _are_alike(node, call)
                    replacement = next(rewrite(node, place), None) if alike else None
                    if replacement is not None:
                        edit[node] = replaced(node, replacement, place)
            if len(edit) > 1:
                yield edit

    return remedy


def _are_alike(one: cst.Call, other: cst.Call) -> bool:
    """Check whether two calls have the same arguments, but for one, such as the number of heads of keys."""
    pairs = zip(one.args, other.args, strict=False)
    different = [code(it.value) != code(like.value) for it, like in pairs]
    return len(one.args) == len(other.args) and sum(different) <= 1


def replaced(node: cst.BaseExpression, replacement: str, site: Site) -> cst.BaseExpression:
    """Return the expression that replaces another one, in parentheses if it needs them there."""
    new = cst.parse_expression(replacement)
    if not isinstance(new, _OPERATIONS) or new.lpar:
        return new
    bare = not node.lpar and isinstance(site.parents.get(node), _ENDS)
    if bare or (not node.lpar and _binds_alike(node, new)):
        return new
    return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _binds_alike(node: cst.BaseExpression, new: cst.BaseExpression) -> bool:
    """Check whether one operation can replace another one without parentheses."""
    factors = (cst.Multiply, cst.Divide, cst.MatrixMultiply, cst.FloorDivide)
    match node, new:
        case cst.BinaryOperation(operator=old), cst.BinaryOperation(operator=operator):
            return type(old) is type(operator) or (
                isinstance(old, factors) and isinstance(operator, factors)
            )
        case cst.Comparison(), cst.Comparison():
            return True
    return type(node) is type(new) is cst.UnaryOperation
