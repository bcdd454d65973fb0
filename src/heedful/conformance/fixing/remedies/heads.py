"""Remedies of heads: how they are split, merged and grouped."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from heedful.conformance.fixing.site import Site
from heedful.conformance.fixing.syntax import atom, called, code, integer, with_argument

VIEWS = ("view", "reshape")
AXES = ((1, 2), (0, 1))
"""Heads and tokens: (B, T, H, D), or (T, B·H, D)."""


def split(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Split the last axis into heads, and then exchange heads and tokens."""
    if not isinstance(node, cst.Call):
        return
    if called(node) in ("transpose", "permute", "swapaxes") and isinstance(
        node.func, cst.Attribute
    ):
        inner = node.func.value
        if isinstance(inner, cst.Call) and called(inner) in VIEWS:
            yield from (text for axes in AXES if (text := _exchanged(inner, axes)))
    if called(node) in VIEWS:
        for axes in AXES:
            if text := _exchanged(node, axes):
                yield f"{text}{exchange(site, axes)}"


def _exchanged(view: cst.Call, axes: tuple[int, int]) -> str:
    """Return a view with two sizes exchanged; "" if it has not got both."""
    sizes = [code(arg.value) for arg in view.args]
    first, second = axes
    if len(sizes) not in (3, 4) or second >= len(sizes) - 1:  # more axes: a packed projection
        return ""
    sizes[first], sizes[second] = sizes[second], sizes[first]
    return f"{code(view.func)}({', '.join(sizes)})"


def exchange(site: Site, axes: tuple[int, int]) -> str:
    """Return a call that exchanges two axes, in the file's own way."""
    if axes == (1, 2) and site.uses(".permute(0, 2, 1, 3)") and not site.uses(".transpose(1, 2)"):
        return ".permute(0, 2, 1, 3)"
    return f".transpose({axes[0]}, {axes[1]})"


def exchanged(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Exchange heads and tokens after the split."""
    if called(node) in VIEWS:
        yield from (f"{code(node)}{exchange(site, axes)}" for axes in AXES)


def merge(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Exchange heads and tokens before the heads are merged."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return
    if called(node) not in (*VIEWS, "flatten", "contiguous"):
        return
    arguments = code(node).removeprefix(code(node.func))
    function = "reshape" if called(node) == "view" else called(node)
    for axes in AXES:
        yield f"{atom(node.func.value)}{exchange(site, axes)}.{function}{arguments}"


def axes(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Exchange other axes."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        exchanging = called(node) in ("transpose", "swapaxes", "permute")
        for pair in AXES if exchanging else ():
            yield f"{atom(node.func.value)}{exchange(site, pair)}"


def equation(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Exchange two neighboring axes of an equation or a pattern."""
    if not isinstance(node, cst.SimpleString) or "->" not in node.value:
        return
    before, arrow, after = node.value.partition("->")
    for text in _neighbors_exchanged(after):
        yield f"{before}{arrow}{text}"
    for text in _neighbors_exchanged(before):
        yield f"{text}{arrow}{after}"


def _neighbors_exchanged(text: str) -> Iterator[str]:
    """Yield a text with two of its neighboring names of axes exchanged: letters, or words between spaces."""
    if " " in text.strip("\"' "):
        words = text.split(" ")
        for index in range(len(words) - 1):
            first, second = words[index : index + 2]
            a, b = first.strip("()\"'"), second.strip("()\"'")
            if a and b:
                pair = [first.replace(a, b), second.replace(b, a)]
                yield " ".join([*words[:index], *pair, *words[index + 2 :]])
        return
    for index in range(len(text) - 1):
        if text[index : index + 2].isalpha():
            yield f"{text[:index]}{text[index + 1]}{text[index]}{text[index + 2 :]}"


def concatenated(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Concatenate heads along the last axis."""
    if not isinstance(node, cst.Call):
        return
    if called(node) in ("cat", "concat", "concatenate"):
        yield code(with_argument(node, 1, "dim", "-1"))
    if called(node) in VIEWS and isinstance(node.func, cst.Attribute):
        stack = node.func.value
        if isinstance(stack, cst.Call) and called(stack) == "stack":
            yield code(with_argument(stack, 1, "dim", "-1")).replace("stack", "cat", 1)


def interleaved(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Repeat each head instead of all heads in turn."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return
    if called(node) in ("repeat", "tile"):
        sizes = [arg.value for arg in node.args]
        repeated = [index for index, size in enumerate(sizes) if integer(size) != 1]
        if len(repeated) == 1:
            count = code(sizes[repeated[0]])
            yield f"{atom(node.func.value)}.repeat_interleave({count}, dim={repeated[0]})"
    match node:
        case cst.Call(
            args=[cst.Arg(cst.BinaryOperation(left=cst.List(elements=[head]), right=count)), dim]
        ) if called(node) == "cat":
            yield f"{atom(head.value)}.repeat_interleave({code(count)}, {code(dim)})"


def reshaped(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Reshape instead of viewing."""
    if (
        called(node) == "view"
        and isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
    ):
        func = node.func.with_changes(attr=cst.Name("reshape"))
        yield code(node.with_changes(func=func))
