"""The names of steps, derived from the syntax tree around the call that made each result."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import NamedTuple

from heedful.observation.source_location import SourceLocation

RETURNED: str = "output"


class TupleItem(NamedTuple):
    """One of several values: its position and, in a named tuple, its field."""

    position: int
    field: str | None = None

    def __str__(self) -> str:
        return f"[{self.position}]" if self.field is None else f".{self.field}"


class StepName(NamedTuple):
    """The name of a result. It is `direct` if the named variable receives exactly this result."""

    text: str
    direct: bool


@dataclass(frozen=True, eq=False)
class CallContext:
    """The facts about a torch call that determine the names of its results.

    Attributes:
        operation: the name of the operation.
        in_place: whether the call wrote into an existing tensor.
        location: the source location of the call, if there is one.
    """

    operation: str
    in_place: bool
    location: SourceLocation | None


class StepNames:
    """Assigns names to the results of torch calls.

    Args:
        boundary: the code of the function that records. Its callers are not part of the recorded call.
    """

    def __init__(self, boundary: CodeType) -> None:
        self._boundary = boundary
        self._items_named: Counter[ast.stmt] = Counter()

    def name(
        self, context: CallContext, item: TupleItem | None, *, replaces_previous: bool = False
    ) -> StepName:
        """Return the name of a result, which is the variable that receives it.

        A result that no variable receives has its operation's name. An intermediate result on the way to a variable
        has both: "scores·matmul".

        Args:
            context: the call.
            item: the part of the call's result to name; None for all of it.
            replaces_previous: whether an earlier torch call within the same expression already received the name, and
                this result replaces it.
        """
        operation = context.operation + ("" if item is None else str(item))
        location = context.location
        if location is None or location.statement is None:
            return StepName(operation, direct=False)
        if context.operation == "setitem" and isinstance(location.node, ast.Subscript):
            return StepName(_target_text(location.node.value) or operation, direct=True)
        destination = _find_destination(location, item, self._boundary)
        if destination.iterated:
            destination = self._unpacked(destination, replaces_previous)
        variable = _variable(destination, context)
        if destination.direct and variable is not None:
            return StepName(variable, direct=True)
        return StepName(intermediate_name(variable, operation), direct=False)

    def _unpacked(self, destination: _Destination, replaces_previous: bool) -> _Destination:
        """Identify an iterated value by its turn, if an assignment unpacks the iteration."""
        match destination.node:
            case ast.Assign(targets=[ast.Tuple(elts=targets) | ast.List(elts=targets), *_]):
                count = self._items_named[destination.node]
                if destination.direct and not replaces_previous:
                    self._items_named[destination.node] += 1
                position = count - 1 if replaces_previous else count
                return replace(destination, item=TupleItem(position % len(targets)))
        return replace(destination, direct=False)


def intermediate_name(variable: str | None, operation: str) -> str:
    """Return the name of a result from which the variable's value is computed later in the same line."""
    return operation if variable is None else f"{variable}·{operation}"


def assigned_variables(location: SourceLocation) -> tuple[str, ...]:
    """Return the local variables that the statement at a location assigns."""
    if not isinstance(location.statement, ast.Assign):
        return ()
    nodes = [node for target in location.statement.targets for node in ast.walk(target)]
    return tuple(
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


# --- the statement that receives a value --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Destination:
    """The syntax node that a value reaches, and in which form.

    Attributes:
        node: the statement or assignment expression; None if the recorded call, or a module's, returns the value.
        frame: the frame that runs the statement.
        direct: whether the value arrives unchanged, with nothing computed from it on the way.
        item: the part of the expression's value that it is; None for all of it.
        iterated: whether it is one of several values that an iteration yields in turn.
    """

    node: ast.AST | None
    frame: FrameType
    direct: bool = True
    item: TupleItem | None = None
    iterated: bool = False


def _find_destination(
    location: SourceLocation, item: TupleItem | None, boundary: CodeType
) -> _Destination:
    """Climb to the statement that receives a value and, if it returns the value, continue in the caller."""
    node, frame = location.node, location.frame
    if node is None:  # `a, b = tensor` unpacks in a bytecode that belongs to no expression
        return _Destination(location.statement, frame, direct=item is not None, item=item)
    value = _Destination(node, frame, item=item)
    while True:
        value = _climb(value)
        if not isinstance(value.node, ast.Return | ast.Lambda):
            return value
        caller = location.caller(boundary)
        if caller is None or caller.statement is None:
            return replace(value, node=None)
        location = caller
        # A caller without an expression is unpacking, which takes one element at a time from an iterator.
        value = replace(
            value,
            node=caller.node or caller.statement,
            frame=caller.frame,
            iterated=value.iterated or caller.node is None,
        )


def _climb(value: _Destination) -> _Destination:
    """Climb from an expression to the statement, lambda or `:=` that contains it."""
    node, direct, item, iterated = _climbed(value.node, value.direct, value.item, value.iterated)
    return _Destination(node, value.frame, direct, item, iterated)


@lru_cache(maxsize=4096)
def _climbed(
    node: ast.AST | None, direct: bool, item: TupleItem | None, iterated: bool
) -> tuple[ast.AST | None, bool, TupleItem | None, bool]:
    while not isinstance(node, ast.stmt | ast.Lambda):
        parent = getattr(node, "parent", None)
        match parent:
            case ast.Tuple() | ast.List() if item is None and not iterated:
                item = TupleItem([element is node for element in parent.elts].index(True))
            case ast.Subscript(slice=ast.Constant(value=index)) if item and index == item.position:
                item = None
            case ast.Attribute(attr=attribute) if item and attribute == item.field:
                item = None
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) if (
                element is node and item is None
            ):
                iterated = True
            case ast.IfExp(test=test) if node is not test:
                pass
            case ast.NamedExpr(value=inner) if inner is node:
                return parent, direct, item, iterated
            case ast.stmt() | ast.Lambda():
                direct = direct and _passes_on(parent, node)
            case _:
                direct, item, iterated = False, None, False
        node = parent
    return node, direct, item, iterated


def _passes_on(statement: ast.AST, node: ast.AST | None) -> bool:
    """Check whether a statement assigns, returns or iterates over an expression as it is."""
    if isinstance(statement, ast.AugAssign):
        return False
    return any(getattr(statement, field, None) is node for field in ("value", "iter", "body"))


# --- the variable's text ------------------------------------------------------------------------------


def _variable(destination: _Destination, context: CallContext) -> str | None:
    """Return the name of the variable at a value's destination, or a name for the destination itself."""
    match destination.node:
        case None:
            return RETURNED + ("" if destination.item is None else str(destination.item))
        case ast.Assign(targets=[target, *_]):
            return _target_text(target, destination.item)
        case ast.AnnAssign() | ast.AugAssign() | ast.NamedExpr():
            return _target_text(destination.node.target, destination.item)
        case ast.For(target=target) if destination.item is not None:
            return _target_text(target)
        case ast.Expr(value=ast.Call() as call) if context.in_place and destination.direct:
            return _overwritten_text(call, destination.frame)
    return None


@lru_cache(maxsize=4096)
def _target_text(target: ast.AST, item: TupleItem | None = None) -> str | None:
    """Return a target's text: "scores", "weights" for `self.weights`, "context[i]"; None for several targets."""
    match target:
        case ast.Starred():
            return _target_text(target.value, item)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            return None if item is None else _item_text(targets, item.position)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            text = ast.unparse(target).removeprefix("self.")
            return text if item is None else f"{text}{item}"
    return None


def _item_text(targets: list[ast.expr], position: int) -> str | None:
    for index, target in enumerate(targets[: position + 1]):
        if isinstance(target, ast.Starred):
            return _target_text(target, TupleItem(position - index))
    return _target_text(targets[position]) if position < len(targets) else None


def _overwritten_text(call: ast.Call, frame: FrameType) -> str | None:
    """Return the source text of the tensor that a bare in-place call overwrites."""
    for keyword in call.keywords:
        if keyword.arg == "out":
            return _target_text(keyword.value)
    match call:
        case ast.Call(func=ast.Attribute(value=target, attr=method)) if method.endswith(
            "_"
        ) and not _belongs_to_python_module(target, frame):
            return _target_text(target)
        case ast.Call(args=[first, *_]):
            return _target_text(first)
    return None


def _belongs_to_python_module(expression: ast.expr, frame: FrameType) -> bool:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return isinstance(expression, ast.Name) and isinstance(
        frame.f_globals.get(expression.id), ModuleType
    )
