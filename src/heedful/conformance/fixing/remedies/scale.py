"""Remedies of the scale: a missing factor, and factors of another size, power or place."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from heedful.conformance.fixing.site import Site
from heedful.conformance.fixing.syntax import (
    argument,
    atom,
    called,
    code,
    descendants,
    is_number,
    names_in,
    power,
    term,
    with_argument,
    without_argument,
)

HEAD_SIZE = re.compile(
    r"_*(head_?(dim|size)|(dim|size|d)_?(per_)?head|d_?(k|q|qk|kv|h)|key_(dim|size)|attention_head_size)"
)
PRODUCTS = ("matmul", "bmm", "einsum", "mm", "baddbmm", "dot")
SIZES = 4  # spellings of the head size that are tried


def scaled_product(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Scale the product of queries and keys."""
    if is_product(node):
        yield from (f"{term(node)} {factor}" for factor in factors(site))


def scaled_input(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Scale what the softmax or the masking is applied to."""
    if isinstance(node, cst.Call) and called(node) in ("softmax", "masked_fill") and node.args:
        scores = node.args[0].value
        if site.is_method(node):
            assert isinstance(node.func, cst.Attribute)
            scores = node.func.value
        for factor in factors(site):
            scaled = cst.parse_expression(f"({term(scores)} {factor})")
            edited = node.deep_replace(scores, scaled)
            assert isinstance(edited, cst.Call)
            yield code(edited)


def scaled_value(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Scale what a statement assigns."""
    if isinstance(site.parents.get(node), cst.Assign):
        yield from (f"{term(node)} {factor}" for factor in factors(site))


def default_scale(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Leave the scale to PyTorch's fused attention."""
    if isinstance(node, cst.Call) and called(node) == "scaled_dot_product_attention":
        default = without_argument(node, "scale")
        if default is not None:
            yield code(default)


def own_factor(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Replace the factor of a product or quotient by the right one."""
    match node:
        case cst.BinaryOperation(operator=cst.Multiply() | cst.Divide(), left=left):
            yield from (f"{term(left)} {factor}" for factor in factors(site))
        case cst.Call(func=cst.Attribute(value=left)) if called(node) in (
            "mul",
            "div",
            "true_divide",
        ):
            yield from (f"{term(left)} {factor}" for factor in factors(site))


def number_as_factor(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Replace a factor that is a plain number by the right one."""
    parent = site.parents.get(node)
    if is_number(node) and isinstance(parent, cst.BinaryOperation) and parent.right is node:
        exponent = {cst.Multiply: "-0.5", cst.Divide: "0.5"}.get(type(parent.operator))
        if exponent is not None:
            yield from (power(size, exponent) for size in head_sizes(site))


def inverse(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Divide instead of multiplying, or the other way round."""
    match node:
        case cst.BinaryOperation(operator=cst.Multiply(), left=left, right=right):
            yield f"{code(left)} / {atom(right) if not _is_power(right) else code(right)}"
        case cst.BinaryOperation(operator=cst.Divide(), left=left, right=right):
            yield f"{code(left)} * {code(right)}"
        case cst.Call() if called(node) == "sqrt" and "math" in code(node.func):
            yield f"1.0 / {code(node)}"


def last_axis(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Take the size of the last axis."""
    match node:
        case cst.Subscript(value=cst.Attribute(attr=cst.Name("shape")), slice=[_]):
            yield f"{code(node.value)}[-1]"
        case cst.Call(func=cst.Attribute(attr=cst.Name("size")), args=[_]):
            yield code(with_argument(node, 0, "dim", "-1"))


def exponent(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Take the root, or its inverse, instead of another power."""
    match node:
        case cst.BinaryOperation(operator=cst.Power(), left=base, right=right) if is_number(right):
            yield power(code(base), "-0.5" if code(right).startswith("-") else "0.5")
            yield power(code(base), "0.5" if code(right).startswith("-") else "-0.5")


def root(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Divide by the root of a size instead of by the size."""
    match site.parents.get(node):
        case cst.BinaryOperation(operator=cst.Divide(), right=right) if right is node:
            if not _is_power(node):
                yield from _roots(site, code(node), atom(node))


def size(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Take the root of the head size instead of another size."""
    match node:
        case cst.BinaryOperation(operator=cst.Power(), right=right) if is_number(right):
            yield from (power(found, code(right)) for found in head_sizes(site))
        case cst.Call(args=[_]) if called(node) in ("sqrt", "rsqrt"):
            yield from (f"{code(node.func)}({found})" for found in head_sizes(site))


def _roots(site: Site, plain: str, base: str) -> list[str]:
    return [f"math.sqrt({plain})"] if site.imports("math") else [power(base, "0.5")]


def _is_power(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Power)


# --- sizes -------------------------------------------------------------------------------------------


def factors(site: Site) -> Iterator[str]:
    """Yield operators with factors that scale scores, the file's own way first."""
    unread = [name for name in site.unread_attributes if "scal" in name or name == "norm_factor"]
    yield from (f"* self.{name}" for name in unread)
    multiplied = site.uses("**-0.5") or site.uses("** -0.5")
    for found in head_sizes(site):
        if multiplied:
            yield f"* {power(found, '-0.5')}"
        else:
            yield from (f"/ {divisor}" for divisor in _roots(site, found, found))


def head_sizes(site: Site) -> list[str]:
    """Return how the size of one head can be written at a site."""
    found: list[str] = []
    if site.is_constructor:
        found += [name for name in [*site.parameters, *site.assigned] if HEAD_SIZE.fullmatch(name)]
    own = [name for name in site.attributes if HEAD_SIZE.fullmatch(name)]
    if site.owner is not None:
        found += [f"self.{name}" for name in own]
    if site.is_constructor and site.owner is not None:
        quotients = [
            code(node)
            for node in descendants(site.owner)
            if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.FloorDivide)
        ]
        found += [text if text.startswith("(") else f"({text})" for text in quotients]
    else:
        spelling = "{}.size(-1)" if site.uses(".size(-1)") else "{}.shape[-1]"
        local = [name for name in site.assigned if HEAD_SIZE.fullmatch(name)]
        found += [*local, *(spelling.format(name) for name in operands(site))]
    return list(dict.fromkeys(found))[:SIZES]


def operands(site: Site) -> list[str]:
    """Return the variables of the nearest product of queries and keys at or before a site."""
    for place in (site, *site.earlier):
        for node in place.expressions:
            if is_product(node):
                return [name for name in names_in(node) if name not in site.file.modules]
    return []


def is_product(node: cst.BaseExpression) -> bool:
    """Check whether an expression multiplies two matrices."""
    match node:
        case cst.BinaryOperation(operator=cst.MatrixMultiply()):
            return True
        case cst.Call():
            return called(node) in PRODUCTS and argument(node, 1, "other") is not None
    return False


def whole_quotient(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Divide sizes without a remainder: / gives a float, which is no size."""
    match node:
        case cst.BinaryOperation(left=left, operator=cst.Divide(), right=right):
            yield f"{code(left)} // {code(right)}"
