"""Probe: a mask that the docstring describes is read, and not only taken by **kwargs."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from heedful.conformance.calling.documentation import is_unused_on_purpose
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import ParsedSource, SourceLine, parsed, parsed_file
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import ANY_CALL, Finding

ENTRY: re.Pattern[str] = re.compile(r"^\s*[-*]?\s*`*(\w*mask)`*\s*(?:\([^)]*\)\s*)?:", re.MULTILINE)
"""A mask in a docstring: `self_attn_mask (Tensor): …`."""


@probe("mask-unused")
def swallowed_masks(evidence: Evidence) -> Iterator[Finding]:
    """Search for a mask in the docstring that is no parameter, while no code reads the keyword of this name."""
    target = evidence.subject.target
    keywords = [it for it in target.parameters.values() if it.kind is inspect.Parameter.VAR_KEYWORD]
    forward = inspect.unwrap(getattr(target.forward, "__func__", target.forward))
    source = parsed(forward)
    file = None if source is None else parsed_file(source.file)
    if not keywords or source is None or file is None:
        return
    for name in ENTRY.findall(inspect.getdoc(forward) or ""):
        if name in target.parameters or name in _names(file):
            continue
        if is_unused_on_purpose(name, prose_about(target.callee)):
            continue
        yield Finding(
            "mask-unused",
            "bug",
            f"The docstring describes {name}, but it is no parameter, and nothing reads it: **{keywords[0].name} takes "
            "it, and it hides nothing.",
            ANY_CALL,
            _first_mask_given(source, keywords[0].name),
            f"Pass {name} to the attention that it is meant for.",
        )
        return


def _names(file: ParsedSource) -> set[str]:
    """Return the names that a file's code contains, also as texts, but not those within its docstrings."""
    names: set[str] = set()
    for node in file.nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                names.add(name)
    return names


def _first_mask_given(source: ParsedSource, keywords: str) -> SourceLine | None:
    """Return the line that passes another mask to the first call that is given all other keywords, too."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and any(
            it.arg is None and ast.unparse(it.value) == keywords for it in node.keywords
        ):
            for given in node.keywords:
                if given.arg and given.arg.endswith("mask"):
                    return SourceLine.at(source.file, given.value.lineno)
    return None
