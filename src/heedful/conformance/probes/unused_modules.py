"""Probe: of two modules that are alike, the code does not call one twice and the other never."""

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
    """Search for a module that no step reads, while another one of the same kind and sizes is called twice."""
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
        twin, line = _called_in_its_place(module, path, idle)
        if twin and _holds(twin, twice):
            yield Finding(
                "projection-unused",
                "bug" if any(it.dim() > 1 for it in idle.parameters()) else "suspicious",
                f"Nothing calls {path}, and {twin}, which is like it, is called twice.",
                "",
                line,
            )
            return


def _holds(path: str, parts: set[str]) -> bool:
    """Check whether a module is one of some modules, or holds one of them."""
    return any(part == path or part.startswith(f"{path}.") for part in parts)


def _called_in_its_place(
    module: nn.Module, path: str, idle: nn.Module
) -> tuple[str, SourceLine | None]:
    """Return the path of a sibling like an idle module that is called twice, and the call that should be of the other.

    It is the second call if the idle module is defined after its sibling, and the first one if it is defined before.
    """
    parent, _, name = path.rpartition(".")
    siblings = list(module.get_submodule(parent).named_children())
    order = [sibling for sibling, _ in siblings]
    for sibling, part in siblings:
        if sibling == name or not _are_alike(part, idle):
            continue
        own = f"{parent}.{sibling}".strip(".")
        lines = lines_calling(module, own)
        if len(lines) == 2:
            return own, lines[order.index(name) > order.index(sibling)]
    return "", None


def _are_alike(one: nn.Module, other: nn.Module) -> bool:
    """Check whether two modules are of one class and have parameters of the same shapes, at least one."""
    shapes = [[it.shape for it in module.parameters()] for module in (one, other)]
    return type(one) is type(other) and shapes[0] == shapes[1] != []
