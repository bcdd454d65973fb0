"""Probe: what a method computes for a parameter of a part is given to that part, also on lines that never ran."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from types import FunctionType

from torch import nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.forwarding import call_without
from heedful.conformance.recording.source import ParsedSource, parsed
from heedful.conformance.recording.target_source import methods_of
from heedful.conformance.reporting.finding import ANY_CALL, Finding


@probe("positions-wrong", "mask-unused")
def unpassed_values(evidence: Evidence) -> Iterator[Finding]:
    """Search for positions or a mask that a method computes and nothing reads, while a call lacks them by that name."""
    yield from islice(unpassed_values_in(evidence.subject.module), 1)


def unpassed_values_in(module: nn.Module | None) -> Iterator[Finding]:
    """Yield the findings on the variables of a module's methods that nothing reads and that a call takes."""
    for part in () if module is None else module.modules():
        if type(part).__module__.startswith("torch."):
            continue
        for method in methods_of(part):
            for name in _unread(method):
                line = call_without(part, name)
                if line is not None:
                    yield Finding(
                        "mask-unused" if "mask" in name else "positions-wrong",
                        "bug",
                        f"{method.__qualname__} computes {name}, and nothing reads it. What is called on this line has "
                        "a parameter of that name, which is not given.",
                        ANY_CALL,
                        line,
                        f"Pass {name}={name}.",
                    )


def _unread(method: FunctionType) -> Iterator[str]:
    """Yield the masks and positions that a method assigns, and reads only to assign them again."""
    source = parsed(method)
    for statement in () if source is None else source.statements():
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if source is not None:
                named = any(word in name for word in ("pos", "mask", "bias"))
                if named and not _is_read_elsewhere(source, name):
                    yield name


def _is_read_elsewhere(source: ParsedSource, name: str) -> bool:
    """Check whether a variable is read outside of the statements that assign it; `locals()` reads all."""
    own = {
        id(node)
        for it in source.statements()
        if isinstance(it, ast.Assign) and ast.unparse(it.targets[0]) == name
        for node in ast.walk(it)
    }
    read = (it for it in source.nodes if isinstance(it, ast.Name) and id(it) not in own)
    return any(it.id in (name, "locals") for it in read)
