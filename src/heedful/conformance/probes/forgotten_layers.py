"""Find what a module is built with and never uses: norms of queries and keys, heads left out by a loop, and tables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence, Set

from torch import nn

from heedful.conformance.probes.projection_names import own_name, parent_of, role_of
from heedful.conformance.recording.source import SourceLine, parsed, parsed_file
from heedful.observation import Step

OF_POSITIONS: re.Pattern[str] = re.compile(r"(^|_)(pos|rel)|position|relative")
SETTING_UP: re.Pattern[str] = re.compile(r"init|reset")
"""Names of functions that give parameters their first values."""
LEAVING = (ast.If, ast.Break, ast.Continue, ast.Return)


def never_called(module: nn.Module | None, read: Set[str]) -> Iterator[str]:
    """Yield parameters of layers that no step reads, beside others that are called.

    They are norms of queries and keys, heads that a loop over all leaves out, and norms of an `nn.Sequential`. So are
    trained tables of positions.

    Args:
        module: The outermost module.
        read: The names of the parameters that used steps read.
    """
    if module is not None:
        yield from _norms_without_a_reader(module, read)
        yield from _heads_left_out(module, read)
        yield from _norms_passed_over(module, read)
        yield from _tables_without_a_reader(module, read)


def line_leaving_out(
    module: nn.Module | None, steps: Sequence[Step], parameter: str
) -> SourceLine | None:
    """Return the line that leaves out the layer of a parameter, beside others that it calls; None without one.

    It is the first line of the loop over the heads, or that of a call of another part of an `nn.Sequential`.
    """
    if module is None:
        return None
    if of_head := re.match(r"(.*heads)\.\d+\.", parameter):
        return _loop_over(module, of_head.group(1))
    path, *_ = parameter.rsplit(".", 2)
    if not isinstance(dict(module.named_modules()).get(path), nn.Sequential):
        return None
    reads = [(it, of.name) for it in steps for of in it.inputs if of.kind == "parameter"]
    if parameter in (name for _, name in reads):
        return None
    return SourceLine.of(next((it for it, name in reads if name.startswith(f"{path}.")), None))


def _norms_without_a_reader(module: nn.Module, read: Set[str]) -> Iterator[str]:
    """Yield the gains of the norms of queries and keys, by their names, that no code reads."""
    used = {parent_of(name) for name in read}
    for path, part in module.named_modules():
        parent, _, name = path.rpartition(".")
        if "norm" not in type(part).__name__.lower() or role_of(name) not in ("query", "key"):
            continue
        gains = [f"{path}.{own}" for own, _ in part.named_parameters(recurse=False)]
        if (
            parent in used
            and not read & {*gains}
            and not _is_read(module.get_submodule(parent), name)
        ):
            yield from gains[:1]


def _heads_left_out(module: nn.Module, read: Set[str]) -> Iterator[str]:
    """Yield a parameter of each head that is not called, though a loop over all heads calls others."""
    for path, part in module.named_modules():
        if not isinstance(part, nn.ModuleList) or not path.endswith("heads"):
            continue
        called = [any(it.startswith(f"{path}.{n}.") for it in read) for n in range(len(part))]
        if any(called) and not all(called) and _loop_over(module, path) is not None:
            idle = part[called.index(False)]
            matrices = (name for name, it in idle.named_parameters() if it.dim() > 1)
            yield from (f"{path}.{called.index(False)}.{name}" for name in matrices)


def _norms_passed_over(module: nn.Module, read: Set[str]) -> Iterator[str]:
    """Yield the gains of norms in an `nn.Sequential` of which another part alone is called, as `self.layer[1](x)`."""
    for path, part in module.named_modules():
        if isinstance(part, nn.Sequential) and any(it.startswith(f"{path}.") for it in read):
            norms = (it for it in part.named_children() if "norm" in type(it[1]).__name__.lower())
            for name, norm in norms:
                gains = [f"{path}.{name}.{own}" for own, _ in norm.named_parameters(recurse=False)]
                yield from gains[:1] if not read & {*gains} else []


def _tables_without_a_reader(module: nn.Module, read: Set[str]) -> Iterator[str]:
    """Yield trained tables of positions, by their names, that code makes and perhaps initialises, and never reads."""
    used = {parent_of(name) for name in read}
    for path, part in module.named_modules():
        own = part.named_parameters(path, recurse=False)
        tables = (name for name, it in own if it.dim() > 1 and OF_POSITIONS.search(own_name(name)))
        is_used = any(it == path or it.startswith(f"{path}.") for it in used) or not path
        for name in tables if is_used else ():
            if name not in read and not _is_read(part, own_name(name), after_setup=True):
                yield name


def _loop_over(module: nn.Module, path: str) -> SourceLine | None:
    """Return the first line of a loop that calls the parts of a list one by one, whatever the tokens are."""
    parent, _, name = path.rpartition(".")
    source = parsed(module.get_submodule(parent).forward)
    for loop in () if source is None else source.statements():
        if source is not None and isinstance(loop, ast.For):
            inner = list(ast.walk(loop))
            reads = any(isinstance(it, ast.Attribute) and it.attr == name for it in inner)
            if reads and not any(isinstance(it, LEAVING) for it in inner):
                return source.line_of(loop)
    return None


def _is_read(module: nn.Module, name: str, *, after_setup: bool = False) -> bool:
    """Check whether a file of the module's classes reads an attribute, or has its name as a text.

    Args:
        module: The module.
        name: The name of the attribute.
        after_setup: Whether functions that give parameters their first values do not count.
    """
    sources = (parsed(cls) for cls in type(module).__mro__ if cls is not nn.Module)
    files = (parsed_file(it.file) for it in sources if it is not None)
    nodes = [node for file in files if file is not None for node in file.nodes]
    functions = (it for it in nodes if isinstance(it, ast.FunctionDef) and after_setup)
    setup = (it for it in functions if SETTING_UP.search(it.name))
    left_out = {node for function in setup for node in ast.walk(function)}
    return any(
        (isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Constant) and node.value == name)
        for node in nodes
        if node not in left_out
    )
