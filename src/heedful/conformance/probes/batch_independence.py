"""Probe: the sequences of a batch do not influence each other."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from heedful.conformance.evidence.chain import SOFTMAXES
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import assignment_before, variables_read
from heedful.conformance.recording.dataflow import VIEWS, parameter_names
from heedful.conformance.recording.definitions import attribute_definition, layer_definition
from heedful.conformance.recording.differences import changed_entries, indices_with_any
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

# The layers from torch that take tokens first by default.
TOKENS_FIRST = (
    *(nn.MultiheadAttention, nn.Transformer),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)
STACKS = (nn.TransformerEncoder, nn.TransformerDecoder, nn.ModuleList, nn.Sequential)


@probe("batch-mixed")
def batch_independence(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change a token of one sequence, and check that no other sequence of the batch changes."""
    B, T = evidence.inputs.sizes
    for b in range(B):
        for c in range(B):
            influence = evidence.influence[b, :, c, :]
            if b == c or not influence.any():
                continue
            i, j = influence.nonzero()[0].tolist()
            yield Finding(
                "batch-mixed",
                "suspicious" if evidence.subject.convention.is_unsure else "bug",
                f"Changing token {j} of sequence {c} changes output {i} of sequence {b}.",
                f"B = {B}, T = {T}",
                _line(evidence, _first_mixing_step(evidence, c)),
            )
            return


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
    if module is None or not names or step.operation != "multi_head_attention_forward":
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


def _first_mixing_step(evidence: Evidence, c: int) -> Step | None:
    """Return the first step at which a change of all tokens of sequence c reaches the other sequences."""
    B, T = evidence.inputs.sizes
    inputs = evidence.inputs
    for token in range(T):  # all, so that no axis but the batch's is left unchanged in parts
        inputs = inputs.changed(c, token)
    after = evidence.subject.record(inputs)
    for step in evidence.baseline.trace:
        changed = changed_entries(evidence.baseline, after, step)
        if changed is None or not changed.any():
            continue
        axes = [axis for axis, size in enumerate(changed.shape) if size % B == 0]
        if axes and not any(_is_one_sequence(changed, axis, B, c) for axis in axes):
            return step
    return None


def _is_one_sequence(changed: Tensor, axis: int, B: int, c: int) -> bool:
    """Check whether all changed indices of an axis belong to sequence c.

    The axis may hold the batch alone, the batch before the heads, or the heads before the batch.
    """
    indices, size = indices_with_any(changed, axis), changed.shape[axis]
    return all(index // (size // B) == c for index in indices) or all(
        index % B == c for index in indices
    )
