"""Probe: a scale that a constructor makes is used, if others are, or if a function that is called takes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torch import nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.scale_lines import SCALES
from heedful.conformance.recording.call_sites import line_reading
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.forwarding import call_without
from heedful.conformance.recording.source import SourceLine, parsed
from heedful.conformance.recording.target_source import methods_of
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding


@probe("scale-missing")
def unused_scales(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for a number called a scale that no method reads, although others called alike are read.

    A call without it of a function that has a parameter of that name shows the same.
    """
    module = evidence.subject.module
    for path, part in () if module is None else module.named_modules():
        scales = [name for name, it in vars(part).items() if _is_scale(name, it)]
        idle = [name for name in scales if line_reading(part, name) is None]
        for name in idle:
            call = call_without(part, name)
            if call is not None:
                proof = f"The constructor makes {name} = {getattr(part, name):.4g}, but nothing reads it; "
                proof += f"the function that is called has a parameter {name}, which is not given."
                yield Finding(
                    "scale-missing", "bug", proof, ANY_CALL, call, f"Give it {name}=self.{name}."
                )
                return
        for name in idle if len(idle) < len(scales) else ():
            alike = [it for it in scales if it not in idle and _ending(it) == _ending(name)]
            if not alike or not _reads_itself(part, alike[0]):
                continue
            whole = f"{path}.{name}" if path else name
            yield Finding(
                "scale-missing",
                "bug",
                f"The constructor makes {name} = {getattr(part, name):.4g}, but nothing reads it; {alike[0]}, beside "
                "it, is used.",
                "",
                _line_to_scale(part, name, alike) or attribute_definition(module, whole),
            )
            return


def _is_scale(name: str, value: object) -> bool:
    return isinstance(value, float) and SCALES.search(name.lower()) is not None and "_" in name


def _ending(name: str) -> str:
    return name.rpartition("_")[2]


def _reads_itself(part: nn.Module, name: str) -> bool:
    """Check whether a method of a module's class multiplies or divides by an attribute."""
    line = line_reading(part, name)
    return line is not None and any(sign in line.source for sign in "*/")


def _line_to_scale(part: nn.Module, name: str, alike: list[str]) -> SourceLine | None:
    """Return the assignment to the variable that has the most words of an attribute, at least one of its own."""
    own = _words(name).difference(*map(_words, alike))
    best: tuple[int, SourceLine] | None = None
    for function in (it for it in methods_of(part) if it.__name__ != "__init__"):
        source = parsed(function)
        for statement in () if source is None else source.statements():
            match statement:
                case ast.Assign(targets=[ast.Name(id=variable)]) if source is not None:
                    shared = _words(variable) & _words(name)
                    if shared & own and (best is None or len(shared) > best[0]):
                        best = len(shared), source.line_of(statement)
    return None if best is None else best[1]


def _words(name: str) -> set[str]:
    """Return the words of a name, without the endings of plurals."""
    return {word.removesuffix("s") for word in name.lower().split("_")}
