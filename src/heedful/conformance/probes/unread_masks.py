"""Probe: an attention within the target reads the mask that it is given."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import islice

from torch import nn

from heedful.conformance.calling.documentation import is_unused_on_purpose
from heedful.conformance.calling.target import is_from_torch
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import ParsedSource, parsed
from heedful.conformance.recording.target_source import methods_of, prose_about
from heedful.conformance.reporting.finding import ANY_CALL, Finding

NORMALIZING: frozenset[str] = frozenset({"softmax", "exp"})


@probe("mask-unused")
def unread_masks(evidence: Evidence) -> Iterator[Finding]:
    """Search for a mask that a method gives to a part with a softmax, whose code never reads it."""
    yield from islice(unread_masks_in(evidence.subject.module), 1)


def unread_masks_in(module: nn.Module | None) -> Iterator[Finding]:
    """Yield the findings on the parts of a module that are given a mask and do not read it."""
    for whole in () if module is None else module.modules():
        for name, mask in _given_masks(whole):
            part = getattr(whole, name, None)
            if not isinstance(part, nn.Module) or is_from_torch(part):
                continue
            source = parsed(inspect.unwrap(type(part).forward))
            line = None if source is None else _normalizing_statement(source)
            if source is None or line is None or not _is_unread(part, mask, source):
                continue
            yield Finding(
                "mask-unused",
                "bug",
                f"{type(part).__name__} takes {mask}, and no line of its forward() reads it: what it should hide keeps "
                "its weight.",
                ANY_CALL,
                source.line_of(line),
            )


def _given_masks(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a module's own code calls with a mask, by keyword, and that keyword."""
    for method in () if is_from_torch(module) else methods_of(module):
        source = parsed(method)
        for node in () if source is None else source.nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                    for given in node.keywords:
                        if "mask" in (given.arg or "") and not isinstance(
                            given.value, ast.Constant
                        ):
                            yield name, given.arg or ""


def _normalizing_statement(source: ParsedSource) -> ast.stmt | None:
    """Return the first statement that takes a softmax, or the exponentials of one."""
    for statement in source.statements():
        if isinstance(statement, ast.Assign | ast.Return):
            names = {getattr(it, "attr", getattr(it, "id", "")) for it in ast.walk(statement)}
            if names & NORMALIZING:
                return statement
    return None


def _is_unread(part: nn.Module, mask: str, source: ParsedSource) -> bool:
    """Check whether the code of a part's forward() reads none of its masks, without saying so."""
    read = {it.id for it in source.nodes if isinstance(it, ast.Name)}
    masks = {it for it in inspect.signature(part.forward).parameters if "mask" in it}
    said = prose_about(part)
    return mask in masks and not read & {*masks, "locals"} and not is_unused_on_purpose(mask, said)
