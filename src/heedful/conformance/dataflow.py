"""Ways through a trace: from an operand back to the projection it came from, and on from a context to the next one."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from functools import lru_cache

from torch import Tensor, nn

from heedful.conformance.finding import Place
from heedful.conformance.inputs import Observation
from heedful.observation import Source, Step

PRODUCTS = ("matmul", "bmm", "mm", "einsum", "baddbmm", "addbmm")
# What mixes features by trained weights ends the search for the scores that a context was made with.
PROJECTIONS = ("linear", "embedding", "layer_norm", "rms_norm", "addmm", "conv1d")
VIEWS = frozenset(
    {
        *("view", "reshape", "transpose", "permute", "flatten", "unflatten", "movedim", "swapaxes"),
        *(
            "contiguous",
            "squeeze",
            "unsqueeze",
            "T",
            "mT",
            "clone",
            "to",
            "float",
            "double",
            "type_as",
        ),
        *("rearrange", "cat", "concat", "stack", "getitem", "chunk", "split", "unbind", "expand"),
        *("swapdims", "narrow", "select", "view_as", "expand_as", "unsafe_chunk", "tensor_split"),
    }
)


def is_projection(step: Step) -> bool:
    """Whether a step mixes features by trained weights."""
    multiplied = step.operation in PRODUCTS
    return step.operation in PROJECTIONS or (
        multiplied and any(it.kind == "parameter" for it in step.inputs)
    )


def made_from_tokens(steps: Sequence[Step]) -> set[int]:
    """The indices of the steps whose results depend on what was put in."""
    alive: set[int] = set()
    for step in steps:
        if any(it.kind == "input" or it.step in alive for it in step.inputs):
            alive.add(step.index)
    return alive


def way_back(observation: Observation, source: Source) -> list[Step]:
    """The steps from an operand back to the projection that made it, which is the first; in order of the trace.

    Where tokens come in unprojected, the way begins at the first step made from them.
    """
    steps = observation.trace.steps
    alive = made_from_tokens(steps)
    found: set[int] = set()
    todo = [] if source.step is None else [source.step]
    while todo:
        index = todo.pop()
        if index in found or index not in alive:
            continue
        found.add(index)
        if not is_projection(steps[index]):
            todo += [it.step for it in steps[index].inputs if it.step is not None]
    return [steps[index] for index in sorted(found)]


def way_on(observation: Observation, start: Step) -> list[Step]:
    """The steps that only rearrange a result, up to the next projection, in order; the start is the first."""
    found = {start.index}
    for step in observation.trace.steps[start.index + 1 :]:
        made_of = {it.step for it in step.inputs} & found
        if made_of and step.operation in VIEWS and not is_projection(step):
            found.add(step.index)
    return [observation.trace.steps[index] for index in sorted(found)]


def parameters_behind(way: list[Step]) -> list[str]:
    """The names of the parameters that a way back began with."""
    return [it.name for step in way for it in step.inputs if it.kind == "parameter"]


def made_where(module: nn.Module | None, name: str, *, held: bool = False) -> Place | None:
    """The line of a module's class that makes one of its attributes: `self.name = …`, or registers it as a buffer.

    Args:
        module: within which the name is looked for.
        name: a dotted path, such as "heads.0.mask".
        held: whether it is asked how the module holds it, not what it holds.
    """
    if module is None:
        return None
    path, _, attribute = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        return None
    for kind in type(owner).__mro__:
        if kind.__module__.startswith("torch.") or kind is object:
            break
        place = _assignment(kind, lambda node: _makes(node, attribute), of_local=not held)
        if place is not None:
            return place
    return None


def _makes(node: ast.stmt, attribute: str) -> bool:
    match node:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            return name == attribute
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=name), *_]
            )
        ):
            return name == attribute
    return False


def _assignment(kind: type, wanted: Callable[[ast.stmt], bool], *, of_local: bool) -> Place | None:
    """The statement that makes an attribute; where that only takes a local variable, the one that makes this."""
    found = _parsed(kind)
    if found is None:
        return None
    file, tree, first = found
    for function in ast.walk(tree):
        body = list(ast.walk(function)) if isinstance(function, ast.FunctionDef) else []
        made = next((it for it in body if isinstance(it, ast.stmt) and wanted(it)), None)
        if made is None:
            continue
        taken = {it.id for it in ast.walk(made) if isinstance(it, ast.Name)}
        before = [
            it
            for it in body
            if isinstance(it, ast.Assign) and it.lineno < made.lineno and _makes_triangle(it, taken)
        ]
        node = before[-1] if before and of_local else made
        return Place(file, first + node.lineno - 1, " ".join(ast.unparse(node).split()))
    return None


def _makes_triangle(node: ast.Assign, names: set[str]) -> bool:
    """Whether an assignment puts a triangular matrix into one of some variables."""
    receives = any(isinstance(it, ast.Name) and it.id in names for it in node.targets)
    calls = {it.attr for it in ast.walk(node) if isinstance(it, ast.Attribute)}
    return receives and bool(calls & {"triu", "tril", "triu_", "tril_"})


@lru_cache(maxsize=64)
def _parsed(kind: type) -> tuple[str, ast.Module, int] | None:
    """A class's file, syntax and first line; None if there is no source."""
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind)
    except (OSError, TypeError):
        return None
    return (file or "", ast.parse(textwrap.dedent("".join(lines))), max(first, 1))


def tensor(step: Step) -> Tensor | None:
    """A step's value, if it was kept whole."""
    return step.value if isinstance(step.value, Tensor) else None
