"""Probe: what the table of embeddings holds for padding does not reach the outputs of real tokens."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.roles import roles_by_name
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.padding_ids import (
    PADDED,
    at_the_end,
    hidden_padding_id,
    inputs_with_padding,
    step_telling_padding,
)
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors, unused_steps
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding


@probe("padding-leak")
def padding_rows(evidence: Evidence) -> Iterator[Finding | Fact]:
    """End each sequence with ids of padding, and change their embedding, if the target tells padding by its id.

    One row for each sequence comes from real tokens alone, as do the rows of these. A target that takes a mask or
    lengths leaves it to its callers. A table with `padding_idx` keeps its zeros, which a convolution may reach.
    """
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    padding = hidden_padding_id(evidence)
    takes_lengths = any("lengths" in roles_by_name(it) for it in subject.target.parameters)
    if padding is None or takes_lengths or T <= PADDED + 2:
        return
    is_padding = at_the_end(B, T)
    inputs = inputs_with_padding(evidence, padding, is_padding)
    if inputs is None:
        return
    whole = attempt(lambda: subject.record(inputs))
    if isinstance(whole, Exception):
        return
    told, steps = step_telling_padding(whole, is_padding), whole.trace.steps
    if told is None or told.index in unused_steps(steps):
        return
    if any(steps[index].operation == "embedding" for index in ancestors(steps, told)):
        return  # padding is told by its embedding
    changed = _with_other_row(subject, _tables_of(whole, subject.convention.names[0]), padding)
    outputs = [
        attempt(lambda it=it, ids=inputs: it.run(ids).detach()) for it in (subject.fresh(), changed)
    ]
    before, after = (
        None if isinstance(it, Exception) else _of_real_tokens(it, T, padding, inputs.vocabulary)
        for it in outputs
    )
    if before is None or after is None or not differing_entries(before, after).any():
        return
    distance = (before - after).abs().max()
    yield Finding(
        "padding-leak",
        "bug",
        f"The code tells padding from real tokens by their ids, in {told.name.partition('·')[0]!r}, but another "
        f"embedding of padding changes the outputs of real tokens by {distance:.3g}.",
        ANY_CALL,
        SourceLine.of(told),
    )


def _tables_of(run: Observation, argument: str) -> set[str]:
    """Return the names of the parameters in which a run looks an argument up."""
    reading = (
        step
        for step in run.trace
        if step.operation == "embedding"
        and any(it.kind == "input" and it.name == argument for it in step.inputs)
    )
    return {it.name for step in reading for it in step.inputs if it.kind == "parameter"}


def _with_other_row(subject: Subject, tables: Set[str], padding: int) -> Subject:
    """Return the subject on a copy of its module, some of whose tables hold something else for padding."""
    changed, generator = subject.fresh(), torch.Generator().manual_seed(0)
    parameters = {} if changed.module is None else dict(changed.module.named_parameters())
    parts = {} if changed.module is None else dict(changed.module.named_modules())
    for name in tables & parameters.keys():
        if getattr(parts[name.rpartition(".")[0]], "padding_idx", None) == padding:
            continue
        with torch.no_grad():
            row = parameters[name][padding]
            row += torch.randn(row.shape, generator=generator)
    return replace(changed, keep_state=True)


def _of_real_tokens(output: Tensor, T: int, padding: int, vocabulary: int) -> Tensor:
    """Return the rows of an output before the padding, without the score of padding itself."""
    rows = output[:, : T - PADDED] if output.dim() > 2 and output.shape[1] == T else output
    others = torch.arange(rows.shape[-1]) != padding
    return rows[..., others] if rows.shape[-1] == vocabulary else rows
