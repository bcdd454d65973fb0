"""Check that a sequence gives the same output alone as within a batch."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.resizing import Resized
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import TargetError
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.groups import taken_together
from heedful.conformance.evidence.noise import draws_noise
from heedful.conformance.probes.divergence import first_divergent_step
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import last_return
from heedful.conformance.recording.differences import coarsest_dtype, differing_entries
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding


@probe("length-dependent")
def batches(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run each sequence alone. Its output must equal its output within the batch."""
    subject, inputs = evidence.subject, evidence.inputs
    if not subject.batched or inputs.sizes[0] < 2 or evidence.influence[0, :, 1, :].any():
        return
    batch = subject.run(inputs).detach()
    B, dtype, given = len(batch), coarsest_dtype(evidence.baseline), subject.arguments(inputs)
    for b in range(B):
        alone = attempt(lambda b=b: subject.run(inputs.entry(b)).detach())
        if isinstance(alone, Exception) and subject.convention.guessed and len(given) > 1:
            return  # other arguments may not belong to another number of sequences
        if isinstance(alone, Exception) and taken_together(subject, *inputs.sizes) > 1:
            return
        if isinstance(alone, Exception):
            proof = f"With one sequence the target raises {describe_exception(alone)}; with {B} it works."
            place = raising_line(alone)
            if isinstance(alone, TargetError):  # the call works, but not its result
                proof = f"With one sequence, {alone}; with {B}, it has."
                place = last_return(subject.target.forward)
            sure = subject.convention.by_trial and len(given) == 1
            case = ANY_CALL if sure else "B = 1"
            yield Finding("length-dependent", "bug", proof, case, place)
            return
        if not differing_entries(alone[0].to(dtype), batch[b].to(dtype)).any():
            continue
        if evidence.causal_alone:
            return
        if draws_noise(evidence):
            return  # other numbers of sequences get other random numbers
        if b and _has_list_for_sequences(subject, B):
            return  # alone, the sequence was given the first one's entry
        distance = (alone[0] - batch[b]).abs().max()
        step = (
            first_divergent_step(subject.record(inputs.entry(b)), evidence.baseline)
            if b == 0
            else None
        )
        yield Finding(
            "length-dependent",
            "bug",
            f"The output of one sequence alone differs from its output within a batch of {B} by {distance:.3g}.",
            f"B = 1 and B = {B}",
            SourceLine.of(step),
        )
        return


def _has_list_for_sequences(subject: Subject, B: int) -> bool:
    """Check whether an argument of the example is a list with an entry for each sequence, such as one of its images."""
    values = [it.value for it in subject.convention.constants.values() if isinstance(it, Resized)]
    return any(isinstance(it, list | tuple) and len(it) == B for it in values)
