"""Probe: of modules that are alike, the code does not call one in place of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.call_sites import lines_calling
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding


@probe("projection-unused")
def unused_modules(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for a module that no step reads, while another one of the same kind and sizes is called in its place."""
    module = evidence.subject.module
    if module is None:
        return
    sources = (source for step in evidence.baseline.trace for source in step.inputs)
    reads = Counter(source.name for source in sources if source.kind == "parameter")
    read = {name.rpartition(".")[0] for name in reads}
    twice = {name.rpartition(".")[0] for name, count in reads.items() if count > 1}
    for path, idle in module.named_modules():
        if not path or _holds(path, read):
            continue
        twin, line = _called_in_its_place(module, path, idle, read)
        if twin and _holds(twin, twice):
            yield Finding(
                "projection-unused",
                "bug" if any(it.dim() > 1 for it in idle.parameters()) else "suspicious",
                f"Nothing calls {path}, and {twin}, which is like it, is called more than once.",
                "",
                line,
            )
            return


def _holds(path: str, parts: set[str]) -> bool:
    """Check whether a module is one of some modules, or holds one of them."""
    return any(part == path or part.startswith(f"{path}.") for part in parts)


def _called_in_its_place(
    module: nn.Module, path: str, idle: nn.Module, read: set[str]
) -> tuple[str, SourceLine | None]:
    """Return the path of a sibling like an idle module that is called instead, and the call that should be of that.

    The sibling is called once for itself and once for each idle one, in the order in which they are defined.
    """
    parent, _, name = path.rpartition(".")
    children = module.get_submodule(parent).named_children()
    alike = [sibling for sibling, part in children if _are_alike(part, idle)]
    paths = {sibling: f"{parent}.{sibling}".strip(".") for sibling in alike}
    called = [sibling for sibling in alike if _holds(paths[sibling], read)]
    for sibling in called:
        lines = lines_calling(module, paths[sibling])
        meant = [it for it in alike if it == sibling or it not in called]
        if 1 < len(lines) <= len(meant):
            return paths[sibling], lines[min(meant.index(name), len(lines) - 1)]
    return "", None


def _are_alike(one: nn.Module, other: nn.Module) -> bool:
    """Check whether two modules are of one class and have parameters of the same shapes, at least one."""
    shapes = [[it.shape for it in module.parameters()] for module in (one, other)]
    return type(one) is type(other) and shapes[0] == shapes[1] != []
