"""Remedies of masks: their use, their polarity, their edges, what they fill in, and their place."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from heedful.conformance.fixing.remedies.softmax import softmax_input
from heedful.conformance.fixing.site import Edit, Site
from heedful.conformance.fixing.syntax import (
    argument,
    atom,
    called,
    code,
    integer,
    is_number,
    names_in,
    with_argument,
    without_argument,
)

TRIANGLES = {"triu": "tril", "tril": "triu", "triu_": "tril_", "tril_": "triu_"}
FUSED = "scaled_dot_product_attention"
FILLS = ("masked_fill", "masked_fill_")

# --- use ---------------------------------------------------------------------------------------------


def assign_result(site: Site) -> Iterator[Edit]:
    """Assign a result that is discarded to the variable that it was computed from."""
    for node in site.nodes:
        if isinstance(node, cst.Expr):
            names = [*_filled(node.value), *names_in(node.value)]
            for name in dict.fromkeys(names):
                if name in [*site.assigned, *site.parameters]:
                    target = cst.AssignTarget(cst.Name(name))
                    yield {node: cst.Assign([target], node.value, node.semicolon)}


def _filled(value: cst.BaseExpression) -> list[str]:
    """Return the variables in the second argument of torch.where(), which holds the scores."""
    if isinstance(value, cst.Call) and called(value) == "where" and len(value.args) > 1:
        return names_in(value.args[1].value)
    return []


def hand_over(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Replace None by a mask that the function takes or builds."""
    if code(node) == "None":
        names = [*site.unread, *site.parameters, *site.assigned]
        yield from (name for name in dict.fromkeys(names) if "mask" in name or "bias" in name)


def combine(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Combine the mask that a statement assigns with another one that nothing has read."""
    if not isinstance(site.parents.get(node), cst.Assign):
        return
    value = atom(node)
    masks = [name for name in dict.fromkeys([*site.unread, *site.parameters]) if "mask" in name]
    for name in (name for name in site.unread if name not in site.sizes):
        yield f"{value} & {name}"
    for name in masks:
        yield f"{value} & {name}.bool()[:, None, None, :]"


def build_triangle(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Build a triangle instead of a matrix of zeros."""
    if isinstance(node, cst.Call) and called(node) == "zeros" and code(node).startswith("torch."):
        ones = code(node).replace("torch.zeros", "torch.ones", 1)
        yield f"torch.triu({ones}, diagonal=1)"


# --- polarity ----------------------------------------------------------------------------------------


def without_negation(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Drop ~."""
    match node:
        case cst.UnaryOperation(operator=cst.BitInvert(), expression=inner):
            yield code(inner)


def opposite_comparison(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Compare the other way round."""
    match node:
        case cst.Comparison(left=left, comparisons=[target]):
            right = code(target.comparator)
            for symbol, other in _opposites(target.operator, right):
                yield f"{code(left)} {symbol} {other}"


def _opposites(operator: cst.BaseCompOp, right: str) -> list[tuple[str, str]]:
    match operator:
        case cst.Equal():
            return [("==", "0"), ("!=", right)] if right in ("1", "True") else [("!=", right)]
        case cst.NotEqual() | cst.GreaterThan() if right == "0":
            return [("==", "0")]
        case cst.NotEqual():
            return [("==", right)]
        case cst.LessThanEqual():
            return [(">=", right), (">", right)]
        case cst.GreaterThanEqual():
            return [("<=", right), ("<", right)]
        case cst.LessThan():
            return [(">=", right), (">", right)]
        case cst.GreaterThan():
            return [("<=", right), ("<", right)]
    return []


def opposite_triangle(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Build the mirrored triangle, or the complement."""
    if not isinstance(node, cst.Call) or called(node) not in TRIANGLES:
        return
    diagonal = _diagonal(node, site)
    if diagonal is not None:
        down = -1 if called(node).startswith("triu") else 1
        yield _triangle(node, site, TRIANGLES[called(node)], -diagonal)
        yield _triangle(node, site, TRIANGLES[called(node)], diagonal + down)


def negated(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Put ~ before a mask."""
    parent = site.parents.get(node)
    holder = site.parents.get(parent) if isinstance(parent, cst.Arg) else None
    if isinstance(parent, cst.Arg) and isinstance(holder, cst.Call):
        masks = [argument(holder, 0 if site.is_method(holder) else 1, "mask")]
        masks = masks if called(holder) in FILLS else [argument(holder, 0, "condition")]
        named = parent.keyword is not None and "mask" in parent.keyword.value
        if named or (parent in masks and called(holder) in (*FILLS, "where")):
            yield f"~{atom(node)}"
    elif isinstance(parent, cst.Assign):
        yield f"~{atom(node)}"


# --- edges -------------------------------------------------------------------------------------------


def without_offset(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Drop the 1 that is added or subtracted."""
    match node:
        case cst.BinaryOperation(
            operator=cst.Add() | cst.Subtract(), left=left, right=cst.Integer()
        ):
            yield code(left)


def strictness(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Include or exclude the equal case of a comparison."""
    symbols = {
        cst.LessThan: "<=",
        cst.LessThanEqual: "<",
        cst.GreaterThan: ">=",
        cst.GreaterThanEqual: ">",
    }
    match node:
        case cst.Comparison(left=left, comparisons=[target]) if type(target.operator) in symbols:
            yield f"{code(left)} {symbols[type(target.operator)]} {code(target.comparator)}"


def shifted_triangle(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Move the diagonal of a triangle by one."""
    if isinstance(node, cst.Call) and called(node) in TRIANGLES:
        diagonal = _diagonal(node, site)
        if diagonal is None:
            given = argument(node, 0 if site.is_method(node) else 1, "diagonal")
            assert given is not None
            for shift in ("+ 1", "- 1"):
                yield code(
                    with_argument(
                        node,
                        0 if site.is_method(node) else 1,
                        "diagonal",
                        f"{code(given.value)} {shift}",
                    )
                )
        else:
            usual = 1 if called(node).startswith("triu") else 0
            nearest = sorted((diagonal - 1, diagonal + 1), key=lambda moved: abs(moved - usual))
            yield from (_triangle(node, site, called(node), moved) for moved in nearest)


def shifted_number(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Move an integer that is added, subtracted or compared by one."""
    number = integer(node)
    parent = site.parents.get(node)
    if number is not None and isinstance(parent, (cst.BinaryOperation, cst.ComparisonTarget)):
        yield from (str(moved) for moved in sorted((number - 1, number + 1), key=abs))


def causal_flag(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Pass is_causal=True to PyTorch's fused attention."""
    if isinstance(node, cst.Call) and called(node) == FUSED:
        yield code(with_argument(node, 5, "is_causal", "True"))
        unmasked = without_argument(node, "attn_mask")
        if unmasked is not None:
            yield code(with_argument(unmasked, 5, "is_causal", "True"))


def _diagonal(node: cst.Call, site: Site) -> int | None:
    """Return the diagonal of a triangle; None if it is no number."""
    given = argument(node, 0 if site.is_method(node) else 1, "diagonal")
    return 0 if given is None else integer(given.value)


def _triangle(node: cst.Call, site: Site, function: str, diagonal: int) -> str:
    """Return the source of a triangle with another function or diagonal."""
    method = site.is_method(node)
    given = argument(node, 0 if method else 1, "diagonal")
    if diagonal == 0:
        node = node.with_changes(
            args=[] if method else [node.args[0].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
        )
    elif given is None and method:
        node = node.with_changes(args=[cst.Arg(cst.parse_expression(str(diagonal)))])
    else:
        node = with_argument(node, 0 if method else 1, "diagonal", str(diagonal))
    match node.func:
        case cst.Attribute():
            func = node.func.with_changes(attr=cst.Name(function))
        case _:
            func = cst.Name(function)
    return code(node.with_changes(func=func))


# --- fill --------------------------------------------------------------------------------------------


def infinity(site: Site) -> str:
    """Return the file's own spelling of minus infinity."""
    spellings = ('float("-inf")', "float('-inf')", "-torch.inf", "-math.inf", "-float('inf')")
    found = [spelling for spelling in spellings if site.uses(spelling)]
    if found:
        return found[0]
    return spellings[site.file.text.count("'") > site.file.text.count('"')]


def fills(site: Site, tensor: str | None) -> list[str]:
    """Return the values that hide scores, the file's own way first."""
    lowest = [] if tensor is None else [f"torch.finfo({tensor}.dtype).min"]
    if site.uses("torch.finfo("):
        return [*lowest, infinity(site)]
    return [infinity(site), *lowest]


def fill_of_call(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Fill with minus infinity, or with the lowest number."""
    if not isinstance(node, cst.Call):
        return
    name, method = called(node), site.is_method(node)
    if name in FILLS:
        tensor = node.func.value if method and isinstance(node.func, cst.Attribute) else None
        tensor = node.args[0].value if tensor is None else tensor
        for fill in fills(site, _variable(tensor)):
            yield code(with_argument(node, 1 if method else 2, "value", fill))
    elif name == "where" and len(node.args) == 3:
        numbers = [i for i in (1, 2) if not names_in(node.args[i].value)] or [2]
        scores = _variable(node.args[3 - numbers[0]].value)
        for fill in fills(site, scores):
            yield code(with_argument(node, numbers[0], "other", fill))


def fill_number(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Replace a number by minus infinity, or by the lowest number."""
    negative = isinstance(site.parents.get(node), cst.UnaryOperation)
    if is_number(node) and not negative:
        names = [name for name in site.reads if name not in site.file.modules]
        names = [*(name for name in names if "mask" not in name), *site.assigned][:1] or [None]
        yield from fills(site, names[0])


def lowest_number(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Take the lowest number of a dtype instead of another property of it."""
    match node:
        case cst.Attribute(value=cst.Call() as limits, attr=attr) if called(limits) == "finfo":
            if attr.value in ("tiny", "eps", "max", "smallest_normal", "resolution"):
                yield f"{code(limits)}.min"


def lowest_instead_of_infinity(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Fill with the lowest number instead of minus infinity, so that no row is without any weight."""
    if isinstance(node, cst.Call) and called(node) in FILLS:
        yield from (text for text in fill_of_call(node, site) if "finfo" in text)
    if code(node) in ('float("-inf")', "float('-inf')", "-torch.inf", "-math.inf"):
        yield from (
            fill for name in site.assigned[:3] for fill in fills(site, name) if "finfo" in fill
        )


def fill_instead_of_product(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Fill the scores that a mask hides instead of multiplying them by it."""
    match node:
        case cst.BinaryOperation(operator=cst.Multiply(), left=left, right=right):
            parent = site.parents.get(node)
            if isinstance(parent, cst.Arg) and parent.keyword and "mask" in parent.keyword.value:
                yield _compared(left)
            for fill in fills(site, _variable(left)):
                yield f"{atom(left)}.masked_fill({_compared(right)}, {fill})"


def boolean(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Pass a Boolean mask instead of a mask of numbers."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if called(node) in ("to", "float", "type_as", "double"):
            yield code(node.func.value)
        parent = site.parents.get(node)
        if isinstance(parent, cst.Arg) and parent.keyword and "mask" in parent.keyword.value:
            yield f"{code(node)}.bool()"


def _variable(node: cst.BaseExpression) -> str | None:
    return (names_in(node) or [None])[0]


def _compared(mask: cst.BaseExpression) -> str:
    return (
        f"{code(mask)} == 0"
        if isinstance(mask, (cst.Name, cst.Subscript))
        else f"{atom(mask)} == 0"
    )


# --- place -------------------------------------------------------------------------------------------


def before_softmax(site: Site) -> Iterator[Edit]:
    """Fill the scores before the softmax instead of changing its weights."""
    masking = next((found for node in site.expressions if (found := _masking(node))), None)
    if masking is None:
        return
    node, weights, mask = masking
    if (softmax := softmax_input(site)) is not None:
        for fill in fills(site, _variable(softmax)):
            filled = cst.parse_expression(f"{atom(softmax)}.masked_fill({mask}, {fill})")
            inner = weights.deep_replace(softmax, filled)
            assert isinstance(inner, cst.BaseExpression)
            yield {node: inner}
        return
    for earlier in site.earlier:
        if (softmax := softmax_input(earlier)) is None:
            continue
        for fill in fills(site, _variable(softmax)):
            filled = f"{atom(softmax)}.masked_fill({mask}, {fill})"
            if isinstance(softmax, cst.Name):
                statement = cst.parse_statement(f"{softmax.value} = {filled}\n")
                before = cst.FlattenSentinel([statement, earlier.statement])
                yield {earlier.statement: before, site.statement: cst.RemoveFromParent()}
            else:
                edit: Edit = {softmax: cst.parse_expression(filled)}
                yield {**edit, site.statement: cst.RemoveFromParent()}
        return


def _masking(
    node: cst.BaseExpression,
) -> tuple[cst.BaseExpression, cst.BaseExpression, str] | None:
    """Return an expression that sets weights to 0, the weights, and the source of what is hidden."""
    match node:
        case cst.Call(func=cst.Attribute(value=weights, attr=name), args=[mask, _]) if (
            name.value in FILLS
        ):
            return node, weights, code(mask.value)
        case cst.BinaryOperation(operator=cst.Multiply(), left=weights, right=mask):
            return node, weights, _compared(mask)
    return None


# --- broadcasting ------------------------------------------------------------------------------------


def broadcast(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Broadcast a mask of keys over heads and queries."""
    if not isinstance(node, cst.Subscript) or len(node.slice) < 2:
        return
    parts = [code(part) for part in node.slice]
    new = parts.count("None")
    kept = [part for part in parts if part != "None"]
    value = code(node.value)
    if kept and new:
        yield f"{value}[{', '.join([kept[0], *['None'] * new, *kept[1:]])}]"
        yield f"{value}[{', '.join([':', *['None'] * new, *[':' for _ in kept[1:]]])}]"
        yield f"{value}[{', '.join([':' if part != 'None' else part for part in parts])}]"
