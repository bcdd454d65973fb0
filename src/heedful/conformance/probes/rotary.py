"""Check that rotary embeddings rotate queries and keys alike, so that scores depend on distance alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.rotary_arguments import is_no_rotation
from heedful.conformance.probes.rotary_continuation import check_continuation
from heedful.conformance.probes.rotations import (
    Rotation,
    find_rotations,
    find_wrong_part,
    is_near,
)
from heedful.conformance.recording.call_sites import call_site
from heedful.conformance.recording.dataflow import VIEWS, ancestors, arguments_behind
from heedful.conformance.recording.handed_numbers import line_computing_number
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

PAIRS: dict[str, str] = {"half": "(i, i + D/2)", "interleaved": "(2i, 2i + 1)"}
USERS: dict[str, str] = {
    "half": "transformers' Llama and GPT-NeoX",
    "interleaved": "the paper, GPT-J and Meta's checkpoints",
}
REAL_TABLE = "Give an example with the cosines and sines of real angles."


@probe("rotary-layout", "rotary-mismatch", "rotary-offset", "length-dependent")
def rotary(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Recover the matrices that rotate queries and keys. Their products must depend on distance alone."""
    if evidence.subject.fixed_sizes is not None:
        return
    for attention in evidence.attentions:
        query, key = find_rotations(evidence, attention)
        if query is None and key is None:
            continue
        if query is None or key is None:
            finding = _report_one_sided(evidence.baseline, attention, query, key)
            meant = _compares_two_sequences(evidence, attention)
            yield replace(finding, level="suspicious") if meant else finding
            return
        finding = _compare(evidence, query, key) or check_continuation(evidence, query, key)
        if finding is not None and is_no_rotation(evidence.baseline):
            proof = "The table of the example is no rotation: its cosines and sines do not belong together."
            yield Finding(finding.name, "not-testable", proof, finding.case, remedy=REAL_TABLE)
            return
        if finding is not None:
            yield finding
            return
        if query.layout is not None:
            offset = _offset_in_others(evidence, attention)
            yield Fact("rotary", f"{query.layout} {PAIRS[query.layout]}")
            yield offset or _report_layout(query, query.layout)
            return


def _offset_in_others(evidence: Evidence, right: RecordedAttention) -> Finding | None:
    """Return a finding if another attention than a right one rotates queries and keys to different positions."""
    for attention in evidence.attentions:
        sides = (None, None) if attention is right else find_rotations(evidence, attention)
        query, key = sides
        finding = None if query is None or key is None else _compare(evidence, query, key)
        if finding is not None and finding.name == "rotary-offset":
            return finding
    return None


def _report_layout(query: Rotation, layout: str) -> Finding:
    return Finding(
        "rotary-layout",
        "convention",
        f"Features are rotated in pairs {PAIRS[layout]}, as in {USERS[layout]}.",
        f"head size {query.maps.shape[-1]}",
        SourceLine.of(query.steps[-1]),
        "None is needed, unless weights come from the other layout.",
    )


def _report_one_sided(
    observation: Observation,
    attention: RecordedAttention,
    query: Rotation | None,
    key: Rotation | None,
) -> Finding:
    """Report that only the queries, or only the keys, are rotated."""
    rotation = query or key
    assert rotation is not None
    rotated, other = ("queries", "keys") if key is None else ("keys", "queries")
    last = rotation.steps[-1]
    is_called = last.function != attention.scores_step.function
    line = call_site(observation, last) if is_called else None
    proof = f"The {rotated} are rotated by position, and the {other} are not."
    return _report_mismatch(proof, rotation, line or SourceLine.of(last))


def _compares_two_sequences(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether the keys are of a second sequence, so that they may have no positions that fit the queries'."""
    convention = evidence.subject.convention
    queries, keys = (
        arguments_behind(evidence.baseline.trace.steps, source)
        for source in (attention.query_source, attention.key_source)
    )
    named = {convention.word_for(name) for name in keys}
    return bool(queries and keys) and queries.isdisjoint(keys) and named.isdisjoint(names.KEYS)


def _compare(evidence: Evidence, query: Rotation, key: Rotation) -> Finding | None:
    """Compare the rotations of queries and keys by the matrices that scores are made with."""
    products = query.maps.mT.unsqueeze(1) @ key.maps  # (T, T, D, D)
    depends_on_distance = is_near(products[1:, 1:], products[:-1, :-1])
    preserve_norms = query.preserves_norms and key.preserves_norms
    if depends_on_distance:
        is_offset = preserve_norms and not _is_identity_at_own_position(products)
        return _report_offset(evidence, query, key) if is_offset else None
    if query.preserves_norms and is_near(query.maps, key.maps):
        return None  # the positions are not consecutive, as those of image patches
    if preserve_norms and query.layout != key.layout:
        proof = f"Queries and keys are rotated in different layouts: {query.layout} pairs and {key.layout} pairs."
        return _report_mismatch(proof, key, SourceLine.of(key.steps[-1]))
    difference = (products[1:, 1:] - products[:-1, :-1]).abs().max()
    proof = (
        f"The scores of tokens 1 and 2 are not made like those of tokens 0 and 1: the matrices differ by "
        f"{difference:.3g}"
    )
    wrong = next((rotation for rotation in (key, query) if not rotation.preserves_norms), None)
    if wrong is None:
        return _report_mismatch(f"{proof}.", key, SourceLine.of(key.steps[-1]))
    observation, wrong = evidence.baseline, find_wrong_part(evidence, wrong)
    step = (
        _partner_step(wrong, right=False)
        or _wrong_table_step(observation, wrong)
        or _partner_step(wrong, right=True)  # which does not fit a table made elsewhere
        or wrong.steps[-1]
    )
    return _report_mismatch(f"{proof}, and norms change.", wrong, SourceLine.of(step))


def _is_identity_at_own_position(products: Tensor) -> bool:
    """Return True if a query and the key of the same token meet unrotated, up to one factor."""
    own = products.diagonal(dim1=0, dim2=1).permute(2, 0, 1)
    return is_near(own, own[0].diagonal().mean() * torch.eye(len(own[0]), dtype=own.dtype))


def _report_offset(evidence: Evidence, query: Rotation, key: Rotation) -> Finding:
    """Report different positions of queries and keys, on the line that computes those which do not begin at 0."""
    steps, module = evidence.baseline.trace.steps, evidence.subject.module
    begins = is_near(key.maps[0], torch.eye(len(key.maps[0]), dtype=key.maps.dtype))
    wrong = query if begins else key
    behind = ancestors(steps, wrong.steps[-1]) - ancestors(steps, wrong.steps[0])
    counting = (steps[it] for it in sorted(behind) if steps[it].operation == "arange")
    lines = (line_computing_number(module, it) for it in counting) if begins else ()
    computed = next((line for line in lines if line is not None), None)
    return Finding(
        "rotary-offset",
        "bug",
        "Queries and keys are rotated to different positions: the query and the key of one token do not match.",
        f"head size {key.maps.shape[-1]}",
        computed or SourceLine.of(key.steps[-1]),
    )


def _report_mismatch(proof: str, rotation: Rotation, line: SourceLine | None) -> Finding:
    return Finding("rotary-mismatch", "bug", proof, f"head size {rotation.maps.shape[-1]}", line)


def _partner_step(rotation: Rotation, *, right: bool) -> Step | None:
    """Return the step that swaps the features of each pair and negates one of them, if it does so rightly or wrongly.

    Applied twice, this swap must negate every feature: it is a rotation by 90°.
    """
    before = tensor_of(rotation.steps[0])
    assert before is not None
    for step in rotation.steps[1:-1]:
        value = tensor_of(step)
        if value is None or value.shape != before.shape:
            continue
        x, y = (tensor.flatten(0, -2).double() for tensor in (before, value))
        swap = torch.linalg.lstsq(x, y).solution.mT
        is_swap = is_near(x @ swap.mT, y) and is_near(swap.abs().sum(0), torch.ones(len(swap)))
        negates = is_near(swap @ swap, -torch.eye(len(swap), dtype=swap.dtype))
        if is_swap and negates == right:
            return step
    return None


def _wrong_table_step(observation: Observation, rotation: Rotation) -> Step | None:
    """Return the step that makes a table of angles in which the two features of a pair differ.

    Go back from a table that features are multiplied by, as long as an input of the step is such a table, too. A table
    before that, which is sliced or joined to make this one, may well be laid out in another way. No step of the run
    makes one that the module holds.
    """
    steps = observation.trace.steps
    features = {step.index for step in rotation.steps} | ancestors(steps, rotation.steps[0])

    def wrong_tables(step: Step) -> list[Step]:
        return [
            steps[source.step]
            for source in step.inputs
            if source.step is not None
            and source.step not in features
            and _is_wrong_table(tensor_of(steps[source.step]), observation, rotation)
        ]

    table = next((table for step in rotation.steps[1:] for table in wrong_tables(step)), None)
    while table is not None and (earlier := wrong_tables(table)):
        table = earlier[0]
    held = table is not None and table.operation in VIEWS and table.inputs[0].step is None
    return None if held else table


def _is_wrong_table(table: Tensor | None, observation: Observation, rotation: Rotation) -> bool:
    """Check whether a tensor has a row of angles for each token, in which the two features of a pair differ."""
    D, T = rotation.maps.shape[-1], observation.inputs.sizes[1]
    if table is None or table.shape[-1:] != (D,) or T not in table.shape[:-1] or D % 2:
        return False
    by_halves = rotation.layout == "half"
    pairs = table.unflatten(-1, (2, -1) if by_halves else (-1, 2)).abs()
    first_features, second_features = pairs.unbind(-2 if by_halves else -1)
    return not is_near(first_features, second_features)
