"""Expressions in source code that read the shape of a tensor, or one size of it."""

from __future__ import annotations

import ast


def tensor_of_shape(node: ast.expr, *, slices: bool = True) -> ast.expr | None:
    """Return the tensor x of `x.shape`, `x.size()` or perhaps a leading slice of either; None for other code."""
    match node:
        case ast.Attribute(value=tensor, attr="shape"):
            return tensor
        case ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[]):
            return tensor
        case ast.Subscript(value=value, slice=ast.Slice(lower=None)) if slices:
            return tensor_of_shape(value)
    return None


def size_read(node: ast.expr) -> tuple[ast.expr, int] | None:
    """Return the tensor x and the axis i of `x.size(i)` or `x.shape[i]`; None for other expressions."""
    match node:
        case (
            ast.Call(
                func=ast.Attribute(value=tensor, attr="size"), args=[ast.Constant(value=int(axis))]
            )
            | ast.Subscript(
                value=ast.Attribute(value=tensor, attr="shape"), slice=ast.Constant(value=int(axis))
            )
        ):
            return tensor, axis
    return None
