"""Remedies of names: another variable, attribute, index or order of arguments."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

import libcst as cst

from heedful.conformance.fixing.remedies.remedy import replaced
from heedful.conformance.fixing.site import Edit, Site
from heedful.conformance.fixing.syntax import called, code, integer, variables

IMPORTS: Mapping[str, str] = {
    "math": "import math", "torch": "import torch", "nn": "from torch import nn",
    "F": "import torch.nn.functional as F", "np": "import numpy as np",
    "einsum": "from torch import einsum", "Tensor": "from torch import Tensor",
    "rearrange": "from einops import rearrange", "repeat": "from einops import repeat",
    "sqrt": "from math import sqrt", "partial": "from functools import partial",
}  # fmt: skip
"""What code usually imports under a name."""

NAMES = 8  # other names that are tried for one name


def other_variable(site: Site) -> Iterator[Edit]:
    """Read another variable in the place of one: first those that nothing has read."""
    if site.is_constructor:
        return
    for name in _others(site):
        for node in _variables(site):
            parameter = node.value in site.parameters or name not in site.parameters
            if parameter and node.value != name and {node.value, name}.isdisjoint(site.sizes):
                yield {node: cst.Name(name)}


def _others(site: Site) -> list[str]:
    """Return the variables that may be meant, the likeliest first."""
    known = [name for name in [*site.unread, *site.assigned, *site.parameters] if name != "_"]
    return list(dict.fromkeys(known))[: NAMES * 2]


def _variables(site: Site) -> list[cst.Name]:
    """Return the variables that a statement reads, without functions and modules."""
    expressions = {id(node) for node in site.expressions}
    calls = {id(node.func) for node in site.nodes if isinstance(node, cst.Call)}
    known = {*site.assigned, *site.parameters}
    return [
        node
        for node in variables(site.statement)
        if id(node) in expressions and id(node) not in calls and node.value in known
    ]


def known_variable(site: Site) -> Iterator[Edit]:
    """Read a variable that exists instead of one that does not, everywhere in the function."""
    missing = re.findall(r"name '(\w+)'|global tensor '(\w+)'", site.proof)
    for wrong in dict.fromkeys(name for pair in missing for name in pair if name):
        similar = difflib.get_close_matches(wrong, _others(site), n=NAMES, cutoff=0.0)
        initials = [name for name in _others(site) if name[0] == wrong[0] or name in wrong]
        for name in dict.fromkeys([*initials, *similar] if len(wrong) < 3 else similar):
            places = [node for node in variables(site.statement) if node.value == wrong]
            yield {node: cst.Name(name) for node in places}


def own_attribute(site: Site) -> Iterator[Edit]:
    """Read the attribute of self with the name of a variable that does not exist."""
    for wrong in re.findall(r"name '(\w+)'", site.proof):
        if wrong in site.attributes:
            attribute = cst.parse_expression(f"self.{wrong}")
            yield {node: attribute for node in variables(site.statement) if node.value == wrong}


def imported(site: Site) -> Iterator[Edit]:
    """Import a module, or a function of one, that the file reads under its usual name."""
    body = site.file.module.body
    heads = [_is_head(statement) for statement in body]
    first = heads.index(False) if False in heads else len(heads)
    for wrong in re.findall(r"name '(\w+)'", site.proof):
        if wrong in IMPORTS:
            statement = cst.parse_statement(f"{IMPORTS[wrong]}\n")
            yield {
                site.file.module: site.file.module.with_changes(
                    body=[*body[:first], statement, *body[first:]]
                )
            }


def _is_head(statement: cst.CSTNode) -> bool:
    """Check whether a statement is a docstring or imports from __future__, which stand before all else."""
    return isinstance(statement, cst.SimpleStatementLine) and (
        "__future__" in code(statement)
        or isinstance(getattr(statement.body[0], "value", None), cst.SimpleString)
    )


def similar_attribute(site: Site) -> Iterator[Edit]:
    """Read an attribute that exists, or the variable of that name, instead of an attribute that does not."""
    for wrong in re.findall(r"has no attribute '(\w+)'", site.proof):
        nodes = [
            node
            for node in site.nodes
            if isinstance(node, cst.Attribute)
            and node.attr.value == wrong
            and code(node.value) == "self"
        ]
        if wrong in (*site.assigned, *site.parameters):
            yield {node: cst.Name(wrong) for node in nodes}
        alike = difflib.get_close_matches(wrong, site.attributes, n=NAMES, cutoff=0.0)
        for name in dict.fromkeys([*site.unread_attributes, *alike]):
            if name != wrong:
                yield {node: cst.parse_expression(f"self.{name}") for node in nodes}


def added_attribute(site: Site) -> Iterator[Edit]:
    """Assign an attribute from the parameter of the constructor that has its name."""
    for wrong in re.findall(r"has no attribute '(\w+)'", site.proof):
        for place in site.attributes.values():
            if wrong in place.parameters and isinstance(place.statement, cst.SimpleStatementLine):
                assignment = cst.parse_statement(f"self.{wrong} = {wrong}\n")
                yield {place.statement: cst.FlattenSentinel([assignment, place.statement])}
                break


def other_attribute(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Use another projection: first the one that the proof names, then those that nothing uses."""
    match node:
        case cst.Attribute(value=cst.Name("self"), attr=attr) if attr.value in site.attributes:
            named = [name for name in site.attributes if re.search(rf"\b{name}\b", site.proof)]
            alike = [
                name
                for name, place in site.attributes.items()
                if _kind(place) == _kind(site.attributes[attr.value])
            ]
            names = dict.fromkeys([*named, *site.unread_attributes, *alike])
            yield from (f"self.{name}" for name in names if name != attr.value)


def _kind(place: Site) -> str:
    """Return the name of the function whose result a statement assigns."""
    value = getattr(place.small, "value", None)
    return called(value) if isinstance(value, cst.CSTNode) else ""


def projected(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Apply a projection that nothing uses to the input of another one."""
    if isinstance(site.parents.get(node), cst.Assign) and not site.is_constructor:
        for name in site.unread_attributes:
            for variable in _variables(site):
                yield f"self.{name}({variable.value})"


def fewer_targets(site: Site) -> Iterator[Edit]:
    """Unpack fewer values: leave out a variable that nothing reads."""
    for node in site.nodes:
        if isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Tuple):
            read = {name for place in site.block for name in place.reads}
            parts = node.target.elements
            for part in reversed(parts):
                if code(part.value) not in read:
                    kept = [other for other in parts if other is not part]
                    last = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                    yield {node.target: node.target.with_changes(elements=[*kept[:-1], last])}


def other_index(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Take another part of a tuple or a list of layers."""
    if integer(node) is not None and isinstance(site.parents.get(node), cst.Index):
        yield from (str(index) for index in range(4) if index != integer(node))


def other_order(site: Site) -> Iterator[Edit]:
    """Exchange two neighboring arguments or elements."""
    for node in [] if site.is_constructor else site.nodes:
        match node:
            case cst.Call(args=parts) | cst.Tuple(elements=parts) | cst.List(elements=parts):
                for index in range(len(parts) - 1):
                    first, second = parts[index], parts[index + 1]
                    if getattr(first, "keyword", None) or getattr(second, "keyword", None):
                        continue
                    yield {first.value: second.value, second.value: first.value}


def through_unused(site: Site) -> Iterator[Edit]:
    """Apply a projection that nothing uses to what a statement returns."""
    match site.small:
        case cst.Return(value=cst.BaseExpression() as value):
            for name in site.unread_attributes:
                yield {value: replaced(value, f"self.{name}({code(value)})", site)}
