"""The order of a target's axes, read from its attributes and its source code."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from heedful.conformance.calling import names


def token_layouts(module: nn.Module | None) -> tuple[str, str]:
    """Return the two layouts of a batch of sequences, the more likely one first."""
    tokens_first = module is not None and _tokens_come_first(module)
    return ("(T, B, C)", "(B, T, C)") if tokens_first else ("(B, T, C)", "(T, B, C)")


def head_layout(target: Callable[..., Any]) -> str:
    """Return the layout of tokens split into heads: "(B, T, H, D)" if the source unpacks a shape so."""
    heads_last = any(_axes(variables)[:3] == "BTH" for variables in _unpacked_shapes(target))
    return "(B, T, H, D)" if heads_last else "(B, H, T, D)"


def _tokens_come_first(module: nn.Module) -> bool:
    """Check whether a module takes (T, B, C).

    Its own `batch_first` decides, then its source (`T, B, C = x.shape`), then the `batch_first` of a layer from torch
    within it.
    """
    if isinstance(declared := getattr(module, "batch_first", None), bool):
        return not declared
    for variables in _unpacked_shapes(module):
        if (axes := _axes(variables)[:2]) in ("TB", "BT"):
            return axes == "TB"
    layers = (part for part in module.modules() if type(part).__module__.startswith("torch."))
    declarations = (getattr(layer, "batch_first", None) for layer in layers)
    return not next((it for it in declarations if isinstance(it, bool)), True)


def _axes(variables: list[str]) -> str:
    """Return a letter per variable: "BT " for ["batch", "seq_len", "d"], with a blank for an unknown name."""
    return "".join(
        next((axis for axis, known in names.AXES.items() if variable.lower() in known), " ")
        for variable in variables
    )


def _unpacked_shapes(target: Callable[..., Any]) -> Iterator[list[str]]:
    """Yield the variables into which a target's source unpacks shapes, those of `forward` first."""
    for tree in _syntax_trees(target):
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=elements)], value=value) if _is_shape(
                    value
                ):
                    yield [it.id if isinstance(it, ast.Name) else "" for it in elements]


def _is_shape(node: ast.expr) -> bool:
    """Check whether an expression is `x.shape` or `x.size()`, or a leading slice of either."""
    match node:
        case ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size"), args=[]):
            return True
        case ast.Subscript(value=value, slice=ast.Slice(lower=None)):
            return _is_shape(value)
    return False


def _syntax_trees(target: Callable[..., Any]) -> Iterator[ast.AST]:
    """Yield the syntax of a function, or of the user's classes in a module: of each `forward`, then of its class."""
    classes = [type(part) for part in target.modules()] if isinstance(target, nn.Module) else []
    own = [cls for cls in dict.fromkeys(classes) if not cls.__module__.startswith("torch.")]
    for definition in [it for cls in own for it in (cls.forward, cls)] or [target]:
        try:
            yield ast.parse(textwrap.dedent(inspect.getsource(definition)))
        except (OSError, TypeError, SyntaxError):  # no source, or none that stands alone
            continue
