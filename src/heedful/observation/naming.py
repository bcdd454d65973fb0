"""What the source calls a result: read off the syntax tree around the call that made it."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, replace
from types import CodeType, FrameType, ModuleType
from typing import NamedTuple

from heedful.observation.place import Place

RETURNED = "output"


class Part(NamedTuple):
    """Which of several values: its position and, in a named tuple, its field."""

    position: int
    field: str | None = None

    def __str__(self) -> str:
        return f"[{self.position}]" if self.field is None else f".{self.field}"


class Name(NamedTuple):
    """A result's name; `direct` if what the name says receives the very result."""

    text: str
    direct: bool


@dataclass(frozen=True, eq=False)
class NamingContext:
    """What names depend on: what is done, whether in place, and where, if that is known."""

    operation: str
    in_place: bool
    place: Place | None


class Names:
    """Names the results of calls made under `home`, the code that records."""

    def __init__(self, home: CodeType) -> None:
        self._home = home
        self._elements_named: Counter[ast.stmt] = Counter()

    def name(self, context: NamingContext, part: Part | None, *, again: bool = False) -> Name:
        """Name a result, or a part of it, after the variable that receives it.

        Where none does, its operation names it; on the way to a variable both do: "scores·matmul".
        `again` says that the source's call had an earlier result, in whose stead this one stands.
        """
        inner = context.operation + ("" if part is None else str(part))
        if context.place is None or context.place.statement is None:
            return Name(inner, direct=False)
        if context.operation == "setitem" and isinstance(context.place.node, ast.Subscript):
            return Name(_label(context.place.node.value) or inner, direct=True)
        arrival = _follow(context.place, part, self._home)
        if arrival.each:
            arrival = self._element(arrival, again)
        receiver = _receiver(arrival, context)
        if arrival.direct and receiver is not None:
            return Name(receiver, direct=True)
        return Name(intermediate(receiver, inner), direct=False)

    def _element(self, arrival: _Arrival, again: bool) -> _Arrival:
        """Tell one of several values by its turn, if an assignment unpacks them."""
        match arrival.holder:
            case ast.Assign(targets=[ast.Tuple(elts=elements) | ast.List(elts=elements), *_]):
                named = self._elements_named[arrival.holder]
                if arrival.direct and not again:
                    self._elements_named[arrival.holder] += 1
                turn = named - 1 if again else named
                return replace(arrival, part=Part(turn % len(elements)))
        return replace(arrival, direct=False)


def _receiver(arrival: _Arrival, context: NamingContext) -> str | None:
    """The variable that a value comes to, or what else to call where it comes to."""
    match arrival.holder:
        case None:
            return RETURNED + ("" if arrival.part is None else str(arrival.part))
        case ast.Assign(targets=[target, *_]):
            return _label(target, arrival.part)
        case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr():
            return _label(arrival.holder.target, arrival.part)
        case ast.For(target=target) if arrival.part is not None:
            return _label(target)
        case ast.Expr(value=ast.Call() as expression) if context.in_place and arrival.direct:
            return _overwritten(expression, arrival.frame)
    return None


def intermediate(receiver: str | None, operation: str) -> str:
    """The name of a result on the way to the one that a variable receives."""
    return operation if receiver is None else f"{receiver}·{operation}"


def assigned_variables(place: Place) -> tuple[str, ...]:
    """The local variables that the place's statement assigns."""
    if not isinstance(place.statement, ast.Assign):
        return ()
    nodes = [node for target in place.statement.targets for node in ast.walk(target)]
    return tuple(
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


@dataclass(frozen=True, eq=False)
class _Arrival:
    """What a value comes to.

    Attributes:
        holder: the statement or assignment expression; None if the recorded call, or a module's,
            returns it.
        frame: the frame of that statement.
        direct: whether it comes to it as it is, nothing being computed from it on the way.
        part: which part of the expression's value it is; None for all of it.
        each: whether it is one of several that an iteration hands over one after another.
    """

    holder: ast.AST | None
    frame: FrameType
    direct: bool = True
    part: Part | None = None
    each: bool = False


def _follow(place: Place, part: Part | None, home: CodeType) -> _Arrival:
    """Climb to the statement that receives a value and, through `return`, on to the caller's."""
    value = _Arrival(place.node, place.frame, direct=place.node is not None, part=part)
    if place.node is None:  # `a, b = tensor` unpacks in a bytecode that is no expression's
        return _Arrival(place.statement, place.frame, direct=part is not None, part=part)
    while True:
        value = _climb(value)
        if not isinstance(value.holder, ast.Return | ast.Lambda):
            return value
        caller = place.caller(home)
        if caller is None or caller.statement is None:
            return _Arrival(None, value.frame, value.direct, value.part, value.each)
        place = caller
        # No expression of the caller's: an unpacking asks an iterator for one element at a time.
        each = value.each or place.node is None
        node = place.node or place.statement
        value = _Arrival(node, place.frame, value.direct, value.part, each)


def _climb(value: _Arrival) -> _Arrival:
    """Climb from an expression to what holds it: a statement, a lambda or a `:=`."""
    node, direct, part, each = value.holder, value.direct, value.part, value.each
    while not isinstance(node, ast.stmt | ast.Lambda):
        parent = getattr(node, "parent", None)
        match parent:
            case ast.Tuple() | ast.List() if part is None and not each:
                part = Part([element is node for element in parent.elts].index(True))
            case ast.Subscript(slice=ast.Constant(value=index)) if part and index == part.position:
                part = None
            case ast.Attribute(attr=attribute) if part and attribute == part.field:
                part = None
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) if (
                element is node and part is None
            ):
                each = True
            case ast.IfExp(test=test) if node is not test:
                pass
            case ast.NamedExpr(value=inner) if inner is node:
                return _Arrival(parent, value.frame, direct, part, each)
            case ast.stmt() | ast.Lambda():
                direct = direct and _hands_over(parent, node)
            case _:
                direct, part, each = False, None, False
        node = parent
    return _Arrival(node, value.frame, direct, part, each)


def _hands_over(holder: ast.AST, node: ast.AST | None) -> bool:
    """Whether an expression is what its statement assigns, returns or iterates over."""
    if isinstance(holder, ast.AugAssign):
        return False
    return any(getattr(holder, place, None) is node for place in ("value", "iter", "body"))


def _label(target: ast.AST, part: Part | None = None) -> str | None:
    """How a target reads: "scores", "weights" for `self.weights`, "context[i]"; None for several."""
    match target:
        case ast.Starred():
            return _label(target.value, part)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return None if part is None else _element_label(elements, part.position)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            text = ast.unparse(target).removeprefix("self.")
            return text if part is None else f"{text}{part}"
    return None


def _element_label(elements: list[ast.expr], position: int) -> str | None:
    for index, element in enumerate(elements[: position + 1]):
        if isinstance(element, ast.Starred):
            return _label(element, Part(position - index))
    return _label(elements[position]) if position < len(elements) else None


def _overwritten(call: ast.Call, frame: FrameType) -> str | None:
    """How the source calls the tensor that a bare in-place call overwrites."""
    for keyword in call.keywords:
        if keyword.arg == "out":
            return _label(keyword.value)
    match call:
        case ast.Call(func=ast.Attribute(value=target, attr=method)) if method.endswith(
            "_"
        ) and not _belongs_to_python_module(target, frame):
            return _label(target)
        case ast.Call(args=[first, *_]):
            return _label(first)
    return None


def _belongs_to_python_module(expression: ast.expr, frame: FrameType) -> bool:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return isinstance(expression, ast.Name) and isinstance(
        frame.f_globals.get(expression.id), ModuleType
    )
