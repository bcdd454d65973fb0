"""Probe: the sequences of a batch do not influence each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeGuard

import torch
from torch import Tensor, nn

from heedful.conformance.calling.convention import MEMORY
from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.resizing import Resized
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import MULTI_HEAD
from heedful.conformance.evidence.groups import taken_together
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import assignment_before, variables_read
from heedful.conformance.recording.dataflow import (
    DIVISIONS,
    SOFTMAXES,
    VIEWS,
    ancestors,
    parameter_names,
)
from heedful.conformance.recording.definitions import attribute_definition, layer_definition
from heedful.conformance.recording.differences import changed_entries, indices_with_any
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step
from heedful.shapes import times

# The layers from torch that take tokens first by default.
TOKENS_FIRST = (
    *(nn.MultiheadAttention, nn.Transformer),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)
FIRST_AXIS: re.Pattern[str] = re.compile(r"[(\[]\s*([A-Za-z]\w*)\s*,")
STACKS = (nn.TransformerEncoder, nn.TransformerDecoder, nn.ModuleList, nn.Sequential)


@probe("batch-mixed")
def batch_independence(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change a token of one sequence, and check that no other sequence of the batch changes."""
    B, T = evidence.inputs.sizes
    if evidence.is_along_batch:
        yield Fact("attention", "along the batch, as the code says of itself")
        return
    together = _entries_together(evidence)
    if together > 1:
        yield Fact("first axis", f"groups of {together} entries that belong together")
    for b in range(B):
        for c in range(B):
            influence = evidence.influence[b, :, c, :]
            if b // together == c // together or not influence.any():
                continue
            i, j = influence.nonzero()[0].tolist()
            after = _after_change(evidence, c // together, together)
            step = _first_mixing_step(evidence, after, c // together, together)
            unsure = evidence.subject.convention.is_unsure and not _leaves_dimension_open(step)
            unsure |= _divides_by_maximum(evidence, step) or _fills_experts(step)
            yield Finding(
                "batch-mixed",
                "suspicious" if unsure else "bug",
                f"Changing token {j} of sequence {c} changes output {i} of sequence {b}.",
                f"B = {B}, T = {T}",
                _line(evidence, step),
            )
            return
    if together < B and not evidence.influence.any():
        yield from _mixed_unseen(evidence, together)
    yield from _mixed_by_arguments(evidence, together)


def _divides_by_maximum(evidence: Evidence, mixing: Step | None) -> bool:
    """Check whether the mixing step divides by a maximum over all sequences, as of the scale of an iteration.

    If no such step is known, because another change leaves the maximum as it is, any step may be the one.
    """
    steps = evidence.baseline.trace.steps
    divisions = [it for it in steps if it.operation in DIVISIONS and mixing in (it, None)]
    sources = (it.step for division in divisions for it in division.inputs if it.step is not None)
    numbers = [steps[it] for it in sources if not steps[it].shape]
    behind = (steps[it] for number in numbers for it in ancestors(steps, number))
    return any(it.operation in ("max", "amax") and not it.shape for it in behind)


def _fills_experts(step: Step | None) -> bool:
    """Check whether a step leaves out the tokens for which an expert has no capacity left, whosever they are."""
    return step is not None and "capacity" in step.source


def _leaves_dimension_open(step: Step | None) -> bool:
    """Check whether a step is a softmax that no dimension is given: PyTorch takes the first one of three."""
    if step is None or step.operation not in SOFTMAXES:
        return False
    given = (*step.arguments[1:2], step.keywords.get("dim"))
    return not any(isinstance(it, int) for it in given)


def _mixed_unseen(evidence: Evidence, together: int) -> Iterator[Finding]:
    """Check whether the reason why no output depends on a token is that an attention is over the batch.

    A learned token for the class, whose output alone is read, then sees only itself in the other sequences.
    """
    after = _after_change(evidence, 0, together)
    step = _first_mixing_step(evidence, after, 0, together)
    if step is not None and step.operation in (MULTI_HEAD, *SOFTMAXES):
        proof = (
            "The attention is over the sequences of the batch, so that no output depends on a token: "
            f"changing the tokens of sequence 0 changes the result of {step.operation} of sequence {together}."
        )
        B, T = evidence.inputs.sizes
        level = "suspicious" if evidence.subject.convention.is_unsure else "bug"
        yield Finding("batch-mixed", level, proof, f"B = {B}, T = {T}", _line(evidence, step))


def _mixed_by_arguments(evidence: Evidence, together: int) -> Iterator[Finding]:
    """Change what a call gives one sequence beside its tokens, and check that no other sequence changes."""
    subject, inputs = evidence.subject, evidence.inputs
    (B, _), given = inputs.sizes, subject.arguments(inputs)
    first = slice(0, together)
    level = "suspicious" if subject.convention.is_unsure else "bug"
    for name, constant in subject.convention.constants.items() if together < B else ():
        value = given.get(name)
        if (
            not isinstance(value, Tensor)
            or not value.is_floating_point()
            or value.shape[:1] != (B,)
        ):
            continue
        if (
            together == 1
            and constant is not MEMORY
            and not _has_part_per_sequence(evidence, constant)
        ):
            continue  # its first axis may have this size by chance
        changed = value.clone()
        changed[first] = value[first].flip(-1) + 1
        after = attempt(lambda it={**given, name: changed}: subject.record_call(it, inputs))
        if isinstance(after, Exception):
            continue
        rows = evidence.differs(after.output, evidence.baseline.output)
        others = rows[together:].any(-1).nonzero().flatten().tolist()
        if rows[first].any() and others:
            yield Finding(
                "batch-mixed",
                "bug" if _is_documented_per_sequence(evidence, name) else level,
                f"Changing {name} of sequence 0 changes the output of sequence {others[0] + together}.",
                f"B = {B}, {name} {times(value.shape)}",
                _line_of_repetition(after, name)
                or _line(evidence, _first_mixing_step(evidence, after, 0, together)),
            )
            return


def _line_of_repetition(observation: Observation, argument: str) -> SourceLine | None:
    """Return the line that repeats an argument of each sequence, all sequences in turn; None if no line does."""
    steps, (B, _) = observation.trace.steps, observation.inputs.sizes
    of_argument = set[int]()
    for step in steps:
        reads = any(it.kind == "input" and it.name == argument for it in step.inputs)
        if not reads and not any(it.step in of_argument for it in step.inputs):
            continue
        of_argument.add(step.index)
        if step.operation in ("repeat", "tile") and step.shape[0] > B == _rows_before(steps, step):
            return SourceLine.of(step)
    return None


def _rows_before(steps: Sequence[Step], step: Step) -> int | None:
    """Return the size of the first axis of what a step reads, if another step has made that."""
    made = step.inputs[0].step if step.inputs else None
    return None if made is None else steps[made].shape[0]


def _has_part_per_sequence(evidence: Evidence, constant: object) -> bool:
    """Check whether an argument has a part for each sequence, in batches of any size."""
    if isinstance(constant, Resized):
        return constant.has_part_per_sequence
    if not callable(constant):
        return False
    B, T = evidence.inputs.sizes
    value = constant(B + 1, T, evidence.subject.dtype)
    return isinstance(value, Tensor) and value.shape[:1] == (B + 1,)


def _is_documented_per_sequence(evidence: Evidence, name: str) -> bool:
    """Check whether the documented shape of an argument begins as that of the tokens, such as "(batch, dim)"."""
    documented = documented_arguments(evidence.subject.target.callee)
    tokens = evidence.subject.convention.names[0]
    found = [FIRST_AXIS.search(documented.get(it, "")) for it in (name, tokens)]
    return None not in found and len({it.group(1) for it in found if it is not None}) == 1


def _entries_together(evidence: Evidence) -> int:
    """Return how many neighbors on the first axis belong together, by what an example gives beside the tokens.

    An argument of shape (batch, frames) tells that the first axis holds the frames of each video, as does the shape
    (batch, frames, height, width) of all of them, and integers that name all its entries, as those of edges do, that
    it holds the nodes of a graph. So does a target that takes no single entry, but fewer than the example has.
    """
    B, T = evidence.inputs.sizes
    if evidence.subject.fixed_sizes is None or B < 3:
        return 1
    for constant in evidence.subject.convention.constants.values():
        value = constant.value if isinstance(constant, Resized) else constant
        if _is_whole_shape(value, B * T) and B % value[0] == 0:
            return B // value[0]
        if not isinstance(value, Tensor) or value.dim() < 2:
            continue
        if value.dtype == torch.int64 and value.unique().tolist() == [*range(B)]:
            return B
        if 1 < value.shape[0] < B == value.shape[0] * value.shape[1]:
            return value.shape[1]
    return taken_together(evidence.subject, B, T)


def _is_whole_shape(value: object, entries: int) -> TypeGuard[Sequence[int]]:
    """Check whether a value is a shape of so many entries."""
    if not isinstance(value, tuple | list) or len(value) < 3:
        return False
    return all(type(it) is int and it > 0 for it in value) and math.prod(value) == entries


def _line(evidence: Evidence, step: Step | None) -> SourceLine | None:
    """Return the line that creates a layer from torch which attends over the batch, or else the step's line.

    Such a layer takes tokens first unless it is created with batch_first=True. A softmax may be over the batch.
    """
    if step is None:
        return None
    module = evidence.subject.module
    kinds = (nn.Softmax,) if step.operation in SOFTMAXES else TOKENS_FIRST
    return (
        layer_definition(module, step, *kinds)
        or (None if _is_rearranged(evidence, step) else _copied_layer(module, step))
        or SourceLine.of(step)
    )


def _is_rearranged(evidence: Evidence, step: Step) -> bool:
    """Check whether the tokens are rearranged for a layer, where its axes could be put in order, too."""
    source = next(iter(step.inputs), None)
    before = None if source is None or source.step is None else evidence.baseline.trace[source.step]
    return before is not None and before.operation in VIEWS


def _copied_layer(module: nn.Module | None, step: Step) -> SourceLine | None:
    """Return the line that creates the layer whose copies a stack of torch's layers consists of."""
    names = parameter_names([step])
    if module is None or not names or step.operation != MULTI_HEAD:
        return None
    parts = names[0].split(".")
    paths = (".".join(parts[:count]) for count in range(1, len(parts)))
    path = next((it for it in paths if isinstance(module.get_submodule(it), STACKS)), None)
    stack = None if path is None else attribute_definition(module, path)
    if stack is None:
        return None
    layers = {type(it).__name__ for it in module.modules() if isinstance(it, TOKENS_FIRST)}
    made = (
        assignment_before(stack.file, stack.line, name, first=1)
        for name in variables_read(stack.file, stack.line)
    )
    is_layer = (it for it in made if it is not None and any(name in it.source for name in layers))
    return next(is_layer, stack)


def _after_change(evidence: Evidence, group: int, together: int) -> Observation:
    """Run on other tokens in a group of entries: on all, so that only the batch's axis is left unchanged in parts."""
    inputs = evidence.inputs
    _, T = inputs.sizes
    for entry, token in product(range(group * together, (group + 1) * together), range(T)):
        inputs = inputs.changed(entry, token)
    return evidence.subject.record(inputs)


def _first_mixing_step(
    evidence: Evidence, after: Observation, group: int, together: int
) -> Step | None:
    """Return the first step at which a change within a group of entries reaches the other groups."""
    groups = evidence.inputs.sizes[0] // together
    return first_mixing_step(evidence.baseline, after, group, groups)


def first_mixing_step(
    before: Observation, after: Observation, group: int, groups: int
) -> Step | None:
    """Return the first step at which a change within one of several groups of rows reaches the other groups."""
    for step in before.trace:
        changed = changed_entries(before, after, step)
        if changed is None or not changed.any():
            continue
        axes = [axis for axis, size in enumerate(changed.shape) if size % groups == 0]
        if axes and not any(_is_of_one_group(changed, axis, groups, group) for axis in axes):
            return step
    return None


def _is_of_one_group(changed: Tensor, axis: int, groups: int, group: int) -> bool:
    """Check whether all changed indices of an axis belong to one group of sequences.

    The axis may hold the batch alone, the batch before the heads, or the heads before the batch.
    """
    indices, size = indices_with_any(changed, axis), changed.shape[axis]
    return all(index // (size // groups) == group for index in indices) or all(
        index % groups == group for index in indices
    )
