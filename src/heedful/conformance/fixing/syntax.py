"""Expressions of source code: as text, as operands, and as calls of functions and methods."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

_CALLS = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.Integer, cst.Float, cst.Tuple)
_FACTORS = (cst.MatrixMultiply, cst.Multiply, cst.Divide, cst.FloorDivide)


def code(node: cst.CSTNode) -> str:
    """Return the source of a node, without the comma after an argument."""
    text = cst.Module([]).code_for_node(node).strip()
    return text.rstrip(", ") if isinstance(node, (cst.Arg, cst.SubscriptElement)) else text


def atom(node: cst.BaseExpression) -> str:
    """Return the source of an expression to which a call or an operator can be applied."""
    return code(node) if isinstance(node, _CALLS) or node.lpar else f"({code(node)})"


def term(node: cst.BaseExpression) -> str:
    """Return the source of an expression that can be multiplied from the right."""
    match node:
        case cst.BinaryOperation(operator=operator) if isinstance(operator, (*_FACTORS, cst.Power)):
            return code(node)
    return atom(node)


def power(base: str, exponent: str) -> str:
    """Return a power, spaced as formatters do: simple bases hug their exponents."""
    simple = all(part.isidentifier() for part in base.split("."))
    return f"{base}**{exponent}" if simple else f"{base} ** {exponent}"


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and everything in it, from the outside to the inside, in the order of the source."""
    yield node
    for child in node.children:
        yield from descendants(child)


def names_in(node: cst.CSTNode) -> list[str]:
    """Return the variables that an expression reads, each once; names of attributes and keywords are none."""
    found = [part.value for part in variables(node)]
    return list(dict.fromkeys(found))


def variables(node: cst.CSTNode) -> Iterator[cst.Name]:
    """Yield the names in a node that stand for variables."""
    match node:
        case cst.Name():
            yield node
        case cst.Attribute(value=value):
            yield from variables(value)
        case cst.Arg(value=value):
            yield from variables(value)
        case _:
            for child in node.children:
                yield from variables(child)


def attributes_of_self(node: cst.CSTNode) -> list[str]:
    """Return the attributes of self that an expression names, each once."""
    found = [
        part.attr.value
        for part in descendants(node)
        if isinstance(part, cst.Attribute) and code(part.value) == "self"
    ]
    return list(dict.fromkeys(found))


# --- calls -------------------------------------------------------------------------------------------


def called(node: cst.CSTNode) -> str:
    """Return the last part of the name of the function or method that a node calls; "" for any other node."""
    match node:
        case cst.Call(func=cst.Attribute(attr=name)) | cst.Call(func=cst.Name() as name):
            return name.value
    return ""


def argument(node: cst.Call, position: int, keyword: str) -> cst.Arg | None:
    """Return the argument with a position or a keyword."""
    for index, arg in enumerate(node.args):
        named = arg.keyword is not None and arg.keyword.value == keyword
        if named or (index == position and arg.keyword is None):
            return arg
    return None


def with_argument(node: cst.Call, position: int, keyword: str, value: str) -> cst.Call:
    """Return a call with another value of an argument, which is appended by its keyword if it was not given."""
    new = cst.parse_expression(value)
    old = argument(node, position, keyword)
    if old is None:
        args = [*(code(arg) for arg in node.args), f"{keyword}={value}"]
        return node.with_changes(args=arguments(", ".join(args)))
    args = [arg.with_changes(value=new) if arg is old else arg for arg in node.args]
    return node.with_changes(args=args)


def without_argument(node: cst.Call, keyword: str) -> cst.Call | None:
    """Return a call without a keyword argument; None if it has none."""
    args = [arg for arg in node.args if arg.keyword is None or arg.keyword.value != keyword]
    if len(args) == len(node.args):
        return None
    return node.with_changes(args=arguments(", ".join(code(arg) for arg in args)))


def arguments(text: str) -> list[cst.Arg]:
    """Return the arguments that a text spells."""
    call = cst.parse_expression(f"f({text})")
    assert isinstance(call, cst.Call)
    return list(call.args)


def integer(node: cst.CSTNode | None) -> int | None:
    """Return the integer that a node spells, with its sign; None for any other node."""
    match node:
        case cst.Integer(value=text):
            return int(text, 0)
        case cst.UnaryOperation(operator=cst.Minus(), expression=cst.Integer(value=text)):
            return -int(text, 0)
    return None


def is_number(node: cst.CSTNode) -> bool:
    """Check whether a node spells a number, with or without a sign."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
        node = node.expression
    return isinstance(node, (cst.Integer, cst.Float))
