"""Probe: a module that is given an attention to wrap calls it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Container, Iterator

from torch import nn

from heedful.conformance.calling.target import is_from_torch
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import last_return
from heedful.conformance.recording.source import parsed
from heedful.conformance.reporting.finding import Finding

ATTENTION: re.Pattern[str] = re.compile(r"attention|attn", re.IGNORECASE)
WHOLESALE: frozenset[str] = frozenset(
    (
        *("children", "named_children", "modules", "named_modules", "_modules"),
        *("__dict__", "__getattr__", "get_submodule"),
    )
)
"""What reads the parts of a module without their names."""


@probe("attention-ignored")
def wrapped_attention(evidence: Evidence) -> Iterator[Finding]:
    """Search for a module whose constructor takes an attention and keeps it, and whose class never reads it."""
    module = evidence.subject.module
    if module is None:
        return
    tensors = dict(module.named_parameters(remove_duplicate=False))
    sources = (source for step in evidence.baseline.trace for source in step.inputs)
    read = {id(tensors[it.name]) for it in sources if it.name in tensors}
    for path, wrapper in module.named_modules():
        for name, part in wrapper.named_children():
            if (
                _is_idle_attention(part, read)
                and _is_given_and_forgotten(wrapper, name)
                and not _is_read_from_outside(module, name)
            ):
                yield Finding(
                    "attention-ignored",
                    "bug",
                    f"{path or 'The target'} is given {type(part).__name__} to wrap and keeps it as {name}, and "
                    f"nothing in {type(wrapper).__name__} reads it.",
                    "",
                    last_return(type(wrapper).forward),
                    f"Return what self.{name} returns.",
                )
                return


def _is_idle_attention(part: nn.Module, read: set[int]) -> bool:
    """Check whether a module is an attention or holds one, by the names of classes, and has no parameter that is read.

    Args:
        part: The module.
        read: The identities of the parameters that the steps of a run read.
    """
    parameters = [id(it) for it in part.parameters()]
    if not parameters or not read.isdisjoint(parameters):
        return False
    return any(ATTENTION.search(type(it).__name__) for it in part.modules())


def _is_given_and_forgotten(wrapper: nn.Module, name: str) -> bool:
    """Check whether a module only keeps a part that its constructor takes: no method of its classes reads it."""
    given = inspect.signature(type(wrapper).__init__).parameters
    own = [it for it in type(wrapper).__mro__ if it not in nn.Module.__mro__]
    trees = [source.tree for it in own if (source := parsed(it)) is not None]
    if is_from_torch(wrapper) or not own or len(trees) < len(own):
        return False
    nodes = [node for tree in trees for node in ast.walk(tree)]
    kept = any(_keeps(node, name, given) for node in nodes)
    return kept and not any(_reads(node, name) for node in nodes)


def _is_read_from_outside(module: nn.Module, name: str) -> bool:
    """Check whether a class of a module reads an attribute of something else than itself, `block.name`."""
    classes = dict.fromkeys(type(part) for part in module.modules() if not is_from_torch(part))
    trees = [source.tree for it in classes if (source := parsed(it)) is not None]
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        for tree in trees
        for node in ast.walk(tree)
    )


def _keeps(node: ast.AST, name: str, given: Container[str]) -> bool:
    """Check whether a statement is `self.name = argument`."""
    match node:
        case ast.Assign(
            targets=[ast.Attribute(value=ast.Name(id="self"), attr=attribute)],
            value=ast.Name(id=argument),
        ):
            return attribute == name and argument in given
    return False


def _reads(node: ast.AST, name: str) -> bool:
    """Check whether an expression reads an attribute of a name, or the parts of a module without their names."""
    match node:
        case ast.Attribute(attr=attribute, ctx=ast.Load()):
            return attribute == name or attribute in WHOLESALE
        case ast.Name(id="getattr" | "vars"):
            return True
    return False
