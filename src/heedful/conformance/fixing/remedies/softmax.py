"""Remedies of the softmax: its dimension, and functions that stand in its place."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from heedful.conformance.fixing.site import Site
from heedful.conformance.fixing.syntax import atom, called, code, with_argument

OTHERS = ("sigmoid", "exp", "relu", "tanh", "softplus", "sigmoid_", "exp_", "relu_")
SOFTMAX = ("softmax", "log_softmax", "Softmax", "softmin")


def last_dimension(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Normalize over the last dimension."""
    if isinstance(node, cst.Call) and called(node) in SOFTMAX:
        first = called(node) == "Softmax" or site.is_method(node)
        yield code(with_argument(node, 0 if first else 1, "dim", "-1"))


def softmax_instead(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Call the softmax instead of another function of each score."""
    if not isinstance(node, cst.Call) or called(node).rstrip("_") not in OTHERS:
        return
    if site.is_method(node):
        assert isinstance(node.func, cst.Attribute)
        yield f"{atom(node.func.value)}.softmax(dim=-1)"
    elif isinstance(node.func, cst.Attribute) and node.args:
        yield f"{code(node.func.value)}.softmax({code(node.args[0].value)}, dim=-1)"


def softmax_input(site: Site) -> cst.BaseExpression | None:
    """Return what the softmax in a statement is applied to; None if there is no softmax."""
    for node in site.expressions:
        if isinstance(node, cst.Call) and called(node) == "softmax":
            if site.is_method(node):
                assert isinstance(node.func, cst.Attribute)
                return node.func.value
            return node.args[0].value if node.args else None
    return None
