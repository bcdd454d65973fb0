"""One bug, one finding: which findings are nothing but consequences of another."""

from __future__ import annotations

from collections.abc import Iterable

from heedful.conformance.finding import Finding

# Causes in order: what stands further up explains what stands beside it.
EXPLAINS: dict[str, tuple[str, ...]] = {
    "undefined-or-global-name": ("*",),
    "crashes": ("*",),
}


def causes(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that no other one explains."""
    found = list(findings)
    names = {finding.name for finding in found if finding.level == "bug"}
    explained = {
        name
        for cause in names
        for name in EXPLAINS.get(cause, ())
        if name != cause and not _mutual(cause, name, names)
    }
    return [it for it in found if it.name not in explained and ("*" not in explained or it.name in EXPLAINS)]


def _mutual(cause: str, name: str, names: set[str]) -> bool:
    return name in names and cause in EXPLAINS.get(name, ())
