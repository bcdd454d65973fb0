"""Probe: a call in one mode does not change what the dropout does in the other one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.definitions import attribute_mutation
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding

MODES = {True: "train", False: "eval"}


@probe("dropout-unused", "dropout-in-eval")
def mode_changes(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run once in the other mode first. Entries must still be dropped in training, and none in eval mode."""
    subject = evidence.subject
    if subject.module is None or not _is_noisy(subject.fresh(train=True), evidence):
        return
    if _is_noisy(subject.fresh(), evidence):
        return  # which is another finding
    for train in (True, False):
        used = subject.fresh(train=not train, keep_state=True)
        assert used.module is not None
        before = dict(_settings(used.module))
        used.run(evidence.inputs)
        changed = [name for name, it in _settings(used.module) if before.get(name, it) != it]
        used.module.train(train)
        if _is_noisy(replace(used, keep_state=False), evidence) == train:
            continue
        proof = (
            f"After a call in {MODES[not train]} mode, "
            f"{'nothing is dropped in training any more' if train else 'entries are dropped in eval mode'}"
            + (f": the call changes {changed[0]}." if changed else ".")
        )
        yield Finding(
            "dropout-unused" if train else "dropout-in-eval",
            "bug",
            proof,
            "B = {}, T = {}".format(*evidence.inputs.sizes),
            _line_changing(used.module, changed),
            "Decide by self.training in each call, and leave the module's own probability as it is.",
        )
        return


def _is_noisy(subject: Subject, evidence: Evidence) -> bool:
    """Check whether two runs with different random numbers differ."""
    first, second = (replace(subject, seed=seed).run(evidence.inputs).detach() for seed in (1, 2))
    return bool(differing_entries(first, second).any())


def _settings(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the numbers that a module and its parts hold, by dotted name, but for the mode itself."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, int | float | None) and name != "training":
                yield f"{path}.{name}".strip("."), value


def _line_changing(module: nn.Module, names: list[str]) -> SourceLine | None:
    """Return the line that changes the first of some attributes."""
    for name in names:
        owner, _, attribute = name.rpartition(".")
        return attribute_mutation(module.get_submodule(owner), attribute)
    return None
