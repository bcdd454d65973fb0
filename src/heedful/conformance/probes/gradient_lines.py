"""Find the line that cuts a gradient off or computes it by hand."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.backward_lines import departing_line
from heedful.conformance.probes.differentiation import DifferentiationPoint
from heedful.conformance.recording.assignments import last_return, variable_is_read_after
from heedful.conformance.recording.source import SourceLine, tree_of
from heedful.observation import find_location

EXPLICIT_CUTS = ("detach", "data", "register_hook")


def find_gradient_line(evidence: Evidence, meant: Collection[int | None] = ()) -> SourceLine | None:
    """Return the likeliest line to blame for a wrong gradient; None if no line stands out.

    In order of likelihood: a call such as detach(), the return of an own autograd Function's backward, any other call
    that loses the gradient, and a write into a tensor.

    Args:
        evidence: The runs.
        meant: The numbers of lines that cut a gradient off on purpose.
    """
    point = DifferentiationPoint.of(evidence)
    watch = _GradientWatch()
    with watch:
        loss = attempt(point.loss)
    functions = () if isinstance(loss, Exception) else custom_functions(loss.grad_fn)
    cuts = [(name, line) for name, line in watch.cuts if line.line not in meant]
    explicit = [line for name, line in cuts if name in EXPLICIT_CUTS]
    backwards = [
        _departing_line(evidence, function) or last_return(function.backward)
        for function in functions
    ]
    by_hand = [line for line in backwards if line is not None]
    others = [line for _, line in cuts]
    return next(iter([*explicit, *by_hand, *others, *watch.writes]), None)


def detached_beside(evidence: Evidence) -> SourceLine | None:
    """Return the only line that cuts a gradient off, if it names a detached copy beside the tensor, which is used, too.

    That is meant: `fixed = x.detach()`, with x and fixed both in use afterwards.
    """
    point = DifferentiationPoint.of(evidence)
    watch = _GradientWatch()
    with watch:
        attempt(point.loss)
    places = {(line.file, line.line): line for _, line in watch.cuts}
    cut = next(iter(places.values())) if len(places) == 1 else None
    match [] if cut is None else tree_of(cut.source).body:
        case [
            ast.Assign(
                targets=[ast.Name(id=copy)],
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="detach")),
            )
        ] if copy != name and cut is not None:
            return cut if variable_is_read_after(cut, name) else None
    return None


def _departing_line(evidence: Evidence, function: Any) -> SourceLine | None:
    """Return the line of a backward pass that departs; None if it does not tell, or cannot be run by itself."""
    line = attempt(lambda: departing_line(function, DifferentiationPoint.of(evidence).loss))
    return None if isinstance(line, Exception) else line


class _GradientWatch(TorchFunctionMode):
    """Note the torch calls that take tensors with a gradient and return tensors without one.

    Attributes:
        cuts: the name of each such call, and its line.
        writes: the lines that write into a tensor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[tuple[str, SourceLine]] = []
        self.writes: list[SourceLine] = []
        self._maxima: list[Tensor] = []  # subtracting a row's maximum needs no gradient

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            name = _name(func)
            operands, results = _floating_tensors((args, kwargs)), _floating_tensors(result)
            if name in ("max", "amax"):
                self._maxima += results
            is_cut = name == "register_hook" or self._cuts_gradient(name, operands, results)
            is_write = name.endswith("_") and not name.endswith("__")
            line = (
                line_in_target(sys._getframe(1), find_gradient_line.__code__)
                if is_cut or is_write
                else None
            )
            if line is not None and is_cut:
                self.cuts.append((name, line))
            elif line is not None:
                self.writes.append(line)
        return result

    def _cuts_gradient(self, name: str, operands: list[Tensor], results: list[Tensor]) -> bool:
        """Return True if a call loses the gradient of its operands, other than by intent."""
        if name.endswith("_like") or name.startswith("new_") or not results:
            return False
        if any(operand is maximum for operand in operands for maximum in self._maxima):
            return False
        takes = any(operand.requires_grad for operand in operands)
        gives = any(result.requires_grad for result in results)
        return takes and not gives


def line_in_target(frame: FrameType, boundary: CodeType) -> SourceLine | None:
    """Return the innermost line of the target that runs in a frame; the search outward stops at a boundary."""
    place = find_location(frame, boundary)
    if place is None:
        return None
    return SourceLine(place.file, place.line, " ".join(place.source.split()))


def _name(func: Any) -> str:
    name = getattr(func, "__name__", "")
    return func.__self__.__name__ if name == "__get__" else name


def _floating_tensors(tree: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def custom_functions(node: Any) -> Iterator[Any]:
    """Yield the classes of autograd Functions in a graph that are not torch's own."""
    for it in graph_nodes(node):
        function = getattr(type(it), "_forward_cls", None)
        if function is not None and not function.__module__.startswith("torch."):
            yield function


def leaves_of(tensor: Tensor) -> list[Tensor]:
    """Return the tensors from which a tensor's gradient starts to be accumulated: parameters, as a rule."""
    leaves = (getattr(node, "variable", None) for node in graph_nodes(tensor.grad_fn))
    own = [tensor] if tensor.is_leaf and tensor.requires_grad else []
    return [*own, *(it for it in leaves if isinstance(it, Tensor))]


def graph_nodes(node: Any) -> Iterator[Any]:
    """Yield the nodes of autograd's graph from one of them on, back to its leaves, each once."""
    seen, pending = set(), [node]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending += [parent for parent, _ in node.next_functions]
