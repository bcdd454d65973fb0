"""Conditions in the code of a module that do not hold because of its attributes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import TypeGuard

from torch import Tensor, nn

from heedful.conformance.recording.source import is_own_attribute, names_in, nodes_of, parsed
from heedful.conformance.recording.target_source import methods_of


def unmet_conditions(module: nn.Module | None) -> Iterator[tuple[set[str], str]]:
    """Yield the names in each condition that an attribute of a module or of one of its parts fails, and the attribute.

    It is `self.scaling` in `if self.scaling:`, if that is None, False or 0, and `self.bias` in
    `if mask is not None and self.bias is not None:`, if that is None.
    """
    for part in () if module is None else module.modules():
        source = parsed(type(part))
        tests = [] if source is None else [it.test for it in source.nodes if isinstance(it, ast.If)]
        for test in tests:
            for needed in test.values if _is_all(test) else [test]:
                attribute = _attribute_needed(part, needed)
                if attribute is not None:
                    yield names_in([test]), attribute
                    break


def is_switched_off(module: nn.Module, path: str) -> bool:
    """Check whether a module reads a buffer only under conditions that its own attributes fail.

    Args:
        module: The module, whose submodules' buffers count, too.
        path: The name of the buffer, as in `module.named_buffers()`.
    """
    owner, _, name = path.rpartition(".")
    part = module.get_submodule(owner)
    methods = (it for it in methods_of(part) if it.__name__ != "__init__")
    nodes = [node for method in methods for node in nodes_of(method)]
    reads = {node for node in nodes if is_own_attribute(node, name)}
    return bool(reads) and reads <= _switched_off(part, nodes).keys()


def switch_of(module: nn.Module | None, parameter: str) -> str:
    """Return the unset attribute without which `forward` does not read a parameter; "" if there is none."""
    if module is None:
        return ""
    nodes = [*nodes_of(module.forward)]
    reads = [node for node in nodes if isinstance(node, ast.Name) and node.id == parameter]
    switched_off = _switched_off(module, nodes)
    return switched_off[reads[0]] if reads and switched_off.keys() >= {*reads} else ""


def has_own_default(function: Callable[..., object], parameter: str) -> bool:
    """Check whether a function takes an attribute of its module in place of an argument that is None."""
    for node in nodes_of(function):
        match node:
            case (
                ast.If(test=test, body=[ast.Assign(value=value)]) | ast.IfExp(test=test, body=value)
            ) if ast.unparse(test) == f"{parameter} is None":
                return "self" in names_in([value])
    return False


def _switched_off(part: nn.Module, nodes: Iterable[ast.AST]) -> dict[ast.AST, str]:
    """Return the nodes under conditions that an attribute of a module fails, and the attribute of each."""
    found: dict[ast.AST, str] = {}
    for node in nodes:
        if isinstance(node, ast.If) and (attribute := _attribute_needed(part, node.test)):
            found |= {it: attribute for line in node.body for it in ast.walk(line)}
    return found


def _is_all(test: ast.expr) -> TypeGuard[ast.BoolOp]:
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)


def _attribute_needed(part: nn.Module, test: ast.expr) -> str | None:
    """Return the attribute of a module because of which `self.name` or `self.name is not None` does not hold."""
    match test:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return None if _attribute(part, name) else name
        case ast.Compare(
            left=ast.Attribute(value=ast.Name(id="self"), attr=name),
            ops=[ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            return name if _attribute(part, name) is None else None
    return None


def _attribute(part: nn.Module, name: str) -> object:
    """Return what a module keeps under a name; True for a tensor, and if it keeps nothing under it."""
    kept = {**vars(part), **part._parameters, **part._buffers, **part._modules}
    value = kept.get(name, True)
    return True if isinstance(value, Tensor) else value
