"""Probe: a flag that makes a call causal, and that is off by default, hides later tokens once it is on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import is_from_torch, is_from_transformers
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.causality import causality
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.reporting.finding import Fact, Finding

CAUSAL_FLAG = re.compile(r"causal|future|look_?ahead")


@probe(*causality.finds)
def causal_flag(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Turn on the flag of a call that makes it causal. No output may depend on a later token then.

    A flag that changes nothing may be there for an interface: that is suspicious alone.
    """
    subject = evidence.subject
    name = _flag(subject)
    if name is None or evidence.stated.causal is not None or subject.convention.pooled:
        return
    constants = {**subject.convention.constants, name: True}
    with_flag = replace(subject, convention=replace(subject.convention, constants=constants))
    output = attempt(lambda: with_flag.run(evidence.inputs).detach())
    if isinstance(output, Exception):  # it may need a mask beside it
        return
    changes = differing_entries(output, evidence.baseline.output).any()
    for answer in causality.ask(Evidence(with_flag, evidence.stated)):
        if isinstance(answer, Finding):
            is_sure = (
                changes or answer.name == "mask-unused"
            )  # a mask that is built is meant to hide
            level = answer.level if is_sure else "suspicious"
            yield replace(answer, level=level, case=f"{answer.case}, {name}=True")


def _flag(subject: Subject) -> str | None:
    """Return the argument that makes a call causal, if it is off by default and the calls do not give it."""
    if is_from_torch(subject.module) or is_from_transformers(subject.module):
        return None
    flags = [it.name for it in subject.target.parameters.values() if it.default is False]
    open_flags = (name for name in flags if name not in subject.convention.constants)
    return next((name for name in open_flags if CAUSAL_FLAG.search(name)), None)
