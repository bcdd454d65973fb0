"""Views in source code whose sizes are those of the axes of a tensor, by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from heedful.conformance.recording.sizes_read import size_read, tensor_of_shape
from heedful.conformance.recording.source import parsed

VIEWS = ("view", "reshape")
COMPOUND = (ast.FunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try)
SAME_SHAPE: re.Pattern[str] = re.compile(r"norm|drop|act")  # layers that keep the shape
Axes = dict[str, int]  # the axis whose size a variable holds


@dataclass(frozen=True)
class NamedView:
    """A view such as `x.view(batch * people, time, C)` of a tensor (batch, time, people, C).

    Attributes:
        lines: The lines of the call.
        axes: The axes of the tensor by the names of their sizes.
        taken: The axes that each size of the view is made of, in the order of the sizes.
        inferred: The place of the size that is -1; None if there is none.
        known: The axes whose sizes have names.
    """

    lines: range
    axes: Axes
    taken: tuple[frozenset[int], ...]
    inferred: int | None
    known: frozenset[int]

    @property
    def begins_with_first_axis(self) -> bool:
        """True if the first axis, usually the batch, stays the first one, or is part of it."""
        return 0 in next((axes for axes in self.taken if axes), ())

    def is_misordered(self, shape: Sequence[int]) -> bool:
        """Check whether the order matters in a tensor of a shape; that of axes of size 1 does not."""
        long = {axis for axis, size in enumerate(shape) if size > 1}
        sizes = list(self.taken)
        if self.inferred is not None and len(self.known) == len(shape):
            sizes[self.inferred] = self.known.difference(*self.taken)
        taken = [axes & long for axes in sizes if axes & long]
        return any(max(before) > min(after) for before, after in pairwise(taken))


def named_views(function: Callable[..., object]) -> Iterator[NamedView]:
    """Yield the views of tensors whose shapes were taken apart before, by the names of the sizes."""
    source = parsed(function)
    shapes: dict[str, Axes] = {}
    simple = (it for it in (source.statements() if source else ()) if not isinstance(it, COMPOUND))
    for statement in sorted(simple, key=lambda it: it.lineno):
        for call in (it for it in ast.walk(statement) if isinstance(it, ast.Call)):
            receiver, sizes = _view(call)
            axes = {} if receiver is None else _axes_of(receiver, shapes)
            taken = tuple(frozenset(_axes_in(size, axes)) for size in sizes)
            named = {name: axis for name, axis in axes.items() if axis in set().union(*taken)}
            lines = range(call.lineno, (call.end_lineno or 0) + 1)
            if len(named) > 1:
                inferred = next((n for n, it in enumerate(sizes) if ast.unparse(it) == "-1"), None)
                named = named if inferred is None else dict(axes)
                yield NamedView(lines, named, taken, inferred, frozenset(axes.values()))
        _follow(statement, shapes)


def _view(call: ast.Call) -> tuple[ast.expr | None, list[ast.expr]]:
    """Return what `view` or `reshape` is called on, and the sizes; None and none for other calls."""
    match call:
        case ast.Call(func=ast.Attribute(value=receiver, attr=name), args=sizes) if name in VIEWS:
            match sizes:
                case [ast.Tuple(elts=elements) | ast.List(elts=elements)]:
                    return receiver, elements
            return receiver, sizes
    return None, []


def _axes_in(size: ast.expr, axes: Axes) -> set[int]:
    """Return the axes whose sizes a size is a product of, or a part of."""
    match size:
        case ast.Name(id=name) if name in axes:
            return {axes[name]}
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _axes_in(left, axes) | _axes_in(right, axes)
        case ast.BinOp(left=left, op=ast.FloorDiv()):
            return _axes_in(left, axes)
    return set()


def _follow(statement: ast.stmt, shapes: dict[str, Axes]) -> None:
    """Note what an assignment makes known about shapes, and forget what it makes untrue."""
    renamed = _rearranged(statement, shapes)
    assigned = {
        it.id
        for it in ast.walk(statement)
        if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)
    }
    for variable in assigned:
        shapes.pop(variable, None)
        for axes in shapes.values():
            axes.pop(variable, None)
    shapes.update(renamed)
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=elements)], value=value):
            tensor = tensor_of_shape(value)
            if isinstance(tensor, ast.Name) and all(isinstance(it, ast.Name) for it in elements):
                names = [it.id for it in elements if isinstance(it, ast.Name)]
                shapes[tensor.id] = {name: n for n, name in enumerate(names) if name.strip("_")}
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            match size_read(value):
                case ast.Name(id=variable), axis:
                    shapes.setdefault(variable, {})[name] = axis


def _rearranged(statement: ast.stmt, shapes: dict[str, Axes]) -> dict[str, Axes]:
    """Return the axes of the tensor that a statement assigns, if it only permutes those of a known one, or none."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=variable)], value=value):
            axes = _axes_of(value, shapes)
            return {variable: dict(axes)} if axes else {}
    return {}


def _axes_of(node: ast.expr, shapes: dict[str, Axes]) -> Axes:
    """Return the axes of `x`, `x.permute(0, 2, 1)`, `x.transpose(1, 2)` or `self.norm(x)`; none of other code."""
    match node:
        case ast.Name(id=variable):
            return shapes.get(variable, {})
        case ast.Call(func=ast.Attribute(value=inner, attr="contiguous"), args=[]):
            return _axes_of(inner, shapes)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=layer), args=[inner]):
            return _axes_of(inner, shapes) if SAME_SHAPE.search(layer) else {}
        case ast.Call(func=ast.Attribute(value=inner, attr="permute"), args=order):
            values = (it.value for it in order if isinstance(it, ast.Constant))
            places = [it for it in values if isinstance(it, int)]
            axes = _axes_of(inner, shapes)
            if len(places) == len(order) and sorted(places) == list(range(len(places))):
                return {name: places.index(axis) for name, axis in axes.items() if axis in places}
        case ast.Call(
            func=ast.Attribute(value=inner, attr="transpose"),
            args=[ast.Constant(value=int(a)), ast.Constant(value=int(b))],
        ):
            return {n: {a: b, b: a}.get(it, it) for n, it in _axes_of(inner, shapes).items()}
    return {}
