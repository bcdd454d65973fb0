"""Remedies of positions and rotations: offsets, layouts and precision."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from heedful.conformance.fixing.remedies.remedy import replaced
from heedful.conformance.fixing.site import Edit, Site
from heedful.conformance.fixing.syntax import (
    argument,
    atom,
    called,
    code,
    integer,
    variables,
    with_argument,
)

OFFSET = re.compile(r"(start|past|offset|cache|prefix|prev|seen|pos)")
COARSE = ("half", "bfloat16", "to", "type_as", "type")


def offsets(site: Site) -> list[str]:
    """Return the variables that may hold the number of cached tokens."""
    known = dict.fromkeys([*site.parameters, *reversed(site.assigned)])
    return [name for name in known if OFFSET.search(name)][:4]


def offset(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Count from the number of cached tokens."""
    for name in offsets(site):
        if isinstance(node, cst.Call) and called(node) == "arange" and node.args:
            positional = [arg for arg in node.args if arg.keyword is None]
            rest = [code(arg) for arg in node.args if arg.keyword is not None]
            end = code(positional[-1].value)
            start = [f"{name}, {name} + {end}", *rest]
            if len(positional) == 1:
                yield f"{code(node.func)}({', '.join(start)})"
                yield f"{code(node)} + {name}"
        if integer(node) == 0 and isinstance(site.parents.get(node), cst.Arg):
            yield name
        if isinstance(node, cst.Call) and called(node) in ("triu", "tril", "triu_", "tril_"):
            position = 0 if site.is_method(node) else 1
            given = argument(node, position, "diagonal")
            diagonal = name if given is None else f"{name} + {code(given.value)}"
            yield code(with_argument(node, position, "diagonal", diagonal))


def sliced(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Take the rows after the cached tokens instead of the first ones."""
    if not isinstance(node, cst.Subscript):
        return
    parts = [code(part) for part in node.slice]
    for index, part in enumerate(parts):
        start, colon, stop = part.partition(":")
        if not colon or start.strip() not in ("", "0") or not stop.strip():
            continue
        for name in offsets(site):
            ends = [stop.strip(), *(end for end in _ends(site, name)), f"{name} + {stop.strip()}"]
            for text in (f"{name}:", *(f"{name}:{end}" for end in dict.fromkeys(ends[1:]))):
                yield f"{code(node.value)}[{', '.join([*parts[:index], text, *parts[index + 1 :]])}]"


def _ends(site: Site, offset: str) -> list[str]:
    """Return the variables that hold a sum with an offset."""
    return [
        name
        for place in site.earlier
        for name in place.targets
        if offset in place.reads and "+" in code(place.statement)
    ][:2]


# --- rotations ---------------------------------------------------------------------------------------


def opposite_sign(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Add instead of subtracting, or the other way round."""
    match node:
        case cst.BinaryOperation(operator=cst.Subtract(), left=left, right=right):
            yield f"{code(left)} + {code(right)}"
        case cst.BinaryOperation(operator=cst.Add(), left=left, right=right):
            yield f"{code(left)} - {code(right)}"


def negated_half(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Negate a half of the dimensions."""
    parent = site.parents.get(node)
    if isinstance(parent, cst.Element) and isinstance(node, cst.Name):
        yield f"-{node.value}"
    match node:
        case cst.UnaryOperation(operator=cst.Minus(), expression=inner):
            yield code(inner)


def halves(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Join halves instead of neighbors."""
    match node:
        case cst.Call() if called(node) == "repeat_interleave" and not site.is_method(node):
            table, dim = code(node.args[0].value), "dim=-1"
            yield f"torch.cat(({table}, {table}), {dim})"
        case cst.Call(func=cst.Attribute(value=table)) if called(node) == "repeat_interleave":
            yield f"torch.cat(({code(table)}, {code(table)}), dim=-1)"
        case cst.Call(func=cst.Attribute(value=cst.Call() as stack)) if (
            called(node) == "flatten" and called(stack) == "stack"
        ):
            yield code(stack).replace("stack", "cat", 1)


def neighbors(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Join neighbors instead of halves."""
    if isinstance(node, cst.Call) and called(node) == "cat" and node.args:
        yield f"{code(node).replace('cat', 'stack', 1)}.flatten(-2)"
        parts = node.args[0].value
        if isinstance(parts, (cst.Tuple, cst.List)) and len(parts.elements) == 2:
            first, second = (code(part.value) for part in parts.elements)
            if first == second:
                yield f"torch.repeat_interleave({first}, 2, dim=-1)"


def exchanged_variables(site: Site) -> Iterator[Edit]:
    """Exchange two variables in an expression, such as cos and sin.

    The last ones come first: the first row of a rotation tells the order of the pair, which the others follow.
    """
    expressions = {id(node) for node in site.expressions}
    found = [node for node in variables(site.statement) if id(node) in expressions][::-1]
    for index, first in enumerate(found):
        for second in found[index + 1 :]:
            if first.value != second.value:
                yield {first: second, second: first}


# --- precision ---------------------------------------------------------------------------------------


def precise(site: Site) -> Iterator[Edit]:
    """Omit casts to a coarser dtype, or cast to float32 instead; integers are cast to float32 or better."""
    casts = [
        node
        for node in site.expressions
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and called(node) in COARSE
        and (called(node) in ("half", "bfloat16") or node.args)
    ]
    integers = any(_is_integer_range(_operand(node)) for node in casts)
    for cast in (_promoted(casts) if integers else "", ".float()"):
        if casts:
            yield {node: replaced(node, f"{atom(_operand(node))}{cast}", site) for node in casts}


def _operand(cast: cst.Call) -> cst.BaseExpression:
    assert isinstance(cast.func, cst.Attribute)
    return cast.func.value


def _is_integer_range(node: cst.BaseExpression) -> bool:
    """Check whether a node calls arange without a dtype."""
    if not isinstance(node, cst.Call) or called(node) != "arange":
        return False
    return all(it.keyword is None or it.keyword.value != "dtype" for it in node.args)


def _promoted(casts: list[cst.Call]) -> str:
    """Return a cast to the dtype that all casts take from a tensor, but to float32 at least; "" for other casts."""
    dtypes = {code(node.args[0].value) if called(node) == "to" else "" for node in casts}
    dtype = dtypes.pop()
    shared = not dtypes and dtype.endswith(".dtype")
    return f".to(torch.promote_types({dtype}, torch.float32))" if shared else ""
