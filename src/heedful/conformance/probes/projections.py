"""Probe: the output depends on every projection of an attention."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import torch
from torch import nn

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.forgotten_layers import line_leaving_out, never_called
from heedful.conformance.probes.idle_entries import idle_entries
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.projection_names import (
    ROLES,
    letters_of,
    own_name,
    parent_of,
    role_of,
)
from heedful.conformance.recording.assignments import alias_before, assigns, last_return
from heedful.conformance.recording.call_sites import (
    call_site,
    line_overwriting_result,
    line_reading_relative,
    lines_calling,
    returns_result,
)
from heedful.conformance.recording.dataflow import (
    RECURRENT,
    VIEWS,
    ancestors,
    is_projection,
    parameter_names,
    steps_from_projection,
    unused_steps,
)
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.line_tracer import traceable
from heedful.conformance.recording.siblings import pairing_siblings
from heedful.conformance.recording.skipped_lines import (
    is_read_in_idle_branch,
    returned_early,
    returned_nothing,
)
from heedful.conformance.recording.source import SourceLine, parsed
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

SPLITS: tuple[str, ...] = (
    *("getitem", "split", "chunk", "unbind", "tensor_split", "unsafe_chunk", "select", "narrow"),
)

ROWS: tuple[str, ...] = ("queries", "keys", "values")
COMBINING: tuple[str, ...] = ("add", "add_", "iadd", "mul", "mul_", "imul", "sub")


@probe("projection-unused")
def projections(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change each projection that no used step reads, and check that the output changes, unless the run ended early."""
    if returned_early(evidence.baseline.trace):
        return
    unused = unused_steps(evidence.baseline.trace.steps)
    finding = (
        _unused_parameter(evidence, unused)
        or _unused_part(evidence, unused)
        or _discarded_part(evidence, unused)
        or _unused_rows(evidence)
        or next(idle_entries(evidence), None)
    )
    if finding is not None:
        yield finding


# --- projections of their own --------------------------------------------------------------------------


def _unused_parameter(evidence: Evidence, unused: set[int]) -> Finding | None:
    """Return a finding if the output does not depend on a projection that is there to be used."""
    subject = evidence.subject
    read = {
        source.name
        for step in evidence.baseline.trace
        if step.index not in unused
        for source in step.inputs
        if source.kind == "parameter"
    }
    candidates = (
        *_candidates(evidence, read),
        *_of_contexts(evidence, unused),
        *_computed_for_nothing(evidence, read, unused),
        *never_called(subject.module, read),
    )
    for name in dict.fromkeys(candidates):
        if _is_read_behind_a_return(evidence, name) or _is_read_elsewhere(evidence, name, unused):
            continue
        changed = subject.fresh()
        assert changed.module is not None
        with torch.no_grad():
            changed.module.get_parameter(name).add_(1.0)
        output = changed.run(evidence.inputs).detach()
        if not differing_entries(output, evidence.baseline.output).any():
            return Finding(
                "projection-unused",
                "bug",
                f"Adding 1 to {name} does not change the output: nothing that is computed from it is used.",
                "",
                _line_without_projection(evidence, name, unused),
            )
    return None


def _is_read_behind_a_return(evidence: Evidence, name: str) -> bool:
    """Check whether the owner of a projection may have returned None before the lines that need it.

    So does a selection of keys for a sequence that has no more of them than are selected.
    """
    module = evidence.subject.module
    owner = None if module is None else module.get_submodule(parent_of(name))
    forward = traceable(owner) if owner is not None and owner is not module else None
    return forward is not None and returned_nothing(forward, evidence.baseline.trace)


def _is_read_elsewhere(evidence: Evidence, name: str, unused: set[int]) -> bool:
    """Check whether what is computed from a projection is read in a branch that did not run, as for diagnostics."""
    last = _last_computed(evidence, name, unused)
    return last is not None and is_read_in_idle_branch(evidence.baseline.trace, last)


def _last_computed(evidence: Evidence, name: str, unused: set[int]) -> Step | None:
    """Return the last step that is computed, for nothing, from a parameter."""
    steps = evidence.baseline.trace.steps
    first = next((step for step in steps if step.index in unused and _reads(step, name)), None)
    if first is None:
        return None
    return steps[max(it for it in unused if first.index in ancestors(steps, steps[it]))]


def _candidates(evidence: Evidence, read: set[str]) -> Iterator[str]:
    """Yield the weights that are not read though their module is in use, and though no other plays their role.

    Args:
        evidence: the runs.
        read: the names of the parameters that used steps read.
    """
    module = evidence.subject.module
    if module is None:
        return
    shapes = {
        name: parameter.shape
        for name, parameter in module.named_parameters()
        if parameter.dim() > 1
    }
    used_modules = {parent_of(name) for name in read}
    filled_roles = {
        (parent_of(name), role_of(own_name(name)), shapes[name]) for name in read & shapes.keys()
    }
    for name, shape in shapes.items():
        if name in read or parent_of(name) not in used_modules:
            continue
        if lines_calling(module, name.removesuffix(".weight")):
            continue  # an argument may be missing without which its line does not run
        role = role_of(own_name(name))
        vacant = role is not None and (parent_of(name), role, shape) not in filled_roles
        twice = _has_sibling_read_twice(evidence, name, shape)
        in_two_roles = _has_sibling_in_two_roles(evidence, name, shape)
        namesake = _variable_called_as(module, name)
        if (
            vacant
            or twice
            or in_two_roles
            or namesake
            or _counterpart_meeting_itself(evidence, name)
        ):
            yield name


def _variable_called_as(module: nn.Module, name: str) -> SourceLine | None:
    """Return the last line of a module's forward that assigns a variable called as one of its layers, such as `out`."""
    parent, _, attribute = name.removesuffix(".weight").rpartition(".")
    source = parsed(module.get_submodule(parent).forward)
    if source is None or not name.endswith(".weight"):
        return None
    assigning = [it for it in source.statements() if assigns(it, attribute)]
    last = max(assigning, key=lambda it: it.lineno, default=None)
    return None if last is None else source.line_of(last)


def _of_contexts(evidence: Evidence, unused: set[int]) -> Iterator[str]:
    """Yield the weights by which a step projects an attention's context, though nothing uses the result."""
    steps = evidence.baseline.trace.steps
    contexts = {attention.context_step.index for attention in evidence.attentions}
    for step in (steps[index] for index in sorted(unused)):
        if is_projection(step) and contexts & ancestors(steps, step):
            yield from (it.name for it in step.inputs if it.kind == "parameter")


def _computed_for_nothing(evidence: Evidence, read: set[str], unused: set[int]) -> Iterator[str]:
    """Yield the weights of queries, keys or values by their names that a step reads, though nothing uses its result.

    A projection whose weights are read elsewhere, too, does something: its bias alone is no evidence.
    """
    for step in (evidence.baseline.trace.steps[index] for index in sorted(unused)):
        if is_projection(step):
            names = [it.name for it in step.inputs if it.kind == "parameter"]
            if not read & set(names):
                yield from filter(_has_operand_role, names)


def _has_operand_role(parameter: str) -> bool:
    """Check whether a parameter, or the part that it belongs to, is called after queries, keys or values."""
    parts = parameter.removesuffix(".weight").split(".")[-2:]
    return any(role_of(part) in ("query", "key", "value") for part in parts)


def _has_sibling_read_twice(evidence: Evidence, name: str, shape: torch.Size) -> bool:
    """Check whether another parameter of the same list and shape is read more than once."""
    module = evidence.subject.module
    assert module is not None
    if not own_name(name).isdigit():
        return False
    siblings = [
        sibling
        for sibling, parameter in module.named_parameters()
        if parent_of(sibling) == parent_of(name) and parameter.shape == shape
    ]
    trace = evidence.baseline.trace
    return any(sum(_reads(step, sibling) for step in trace) > 1 for sibling in siblings)


def _has_sibling_in_two_roles(evidence: Evidence, name: str, shape: torch.Size) -> bool:
    """Check whether an attention projects two of its operands by one parameter, which is like one that is not read."""
    module = evidence.subject.module
    assert module is not None
    for attention in evidence.attentions:
        sources = (attention.query_source, attention.key_source, attention.value_source)
        paths = [steps_from_projection(evidence.baseline, source)[:1] for source in sources]
        used = [next(iter(parameter_names(path)), "") for path in paths]
        for parameter in (it for it in used if used.count(it) == 2):
            if parent_of(parameter) == parent_of(name) and _shape(module, parameter) == shape:
                return True
    return False


def _counterpart_meeting_itself(evidence: Evidence, name: str) -> Step | None:
    """Return the step that reads a parameter's counterpart for both sides of a sum or product, as att_l for att_r.

    The counterpart has the same shape and a name that differs in one word.
    """
    module, steps = evidence.subject.module, evidence.baseline.trace.steps
    assert module is not None
    for other, parameter in module.named_parameters():
        if parent_of(other) != parent_of(name) or parameter.shape != _shape(module, name):
            continue
        if not _differ_in_one_word(own_name(name), own_name(other)):
            continue
        readers = [step for step in steps if _reads(step, other)]
        for step in readers and steps[readers[0].index :]:
            origins = [_unrearranged(steps, source) for source in step.inputs]
            if step.operation not in COMBINING or len(origins) != 2 or None in origins:
                continue
            same = origins[0] == origins[1] and _is_from(steps, origins[0], readers)
            if same or all(_reads(steps[it], other) for it in origins if it is not None):
                return readers[-1]
    return None


def _differ_in_one_word(name: str, other: str) -> bool:
    words, others = name.split("_"), other.split("_")
    differing = sum(a != b for a, b in zip(words, others, strict=False))
    return len(words) == len(others) > 1 and differing == 1


def _unrearranged(steps: tuple[Step, ...], source: Source) -> int | None:
    """Return the index of the step from which a source was taken by views and indices; None if there is none."""
    index = source.step
    while index is not None and steps[index].operation in (*VIEWS, "index_select", "gather"):
        index = next((it.step for it in steps[index].inputs), None)
    return index


def _is_from(steps: tuple[Step, ...], index: int | None, readers: list[Step]) -> bool:
    """Check whether a step sums up, or is, the result of a step that reads a parameter."""
    behind = set[int]() if index is None else ancestors(steps, steps[index])
    return any(reader.index in behind for reader in readers)


def _shape(module: nn.Module, parameter: str) -> torch.Size | None:
    return dict(module.named_parameters())[parameter].shape if parameter else None


def _line_without_projection(evidence: Evidence, name: str, unused: set[int]) -> SourceLine | None:
    """Return the line that uses something else where it should use a projection."""
    steps, module, role = (
        evidence.baseline.trace.steps,
        evidence.subject.module,
        role_of(own_name(name)),
    )
    computed = next((step for step in steps if step.index in unused and _reads(step, name)), None)
    if computed is not None:
        last = _last_computed(evidence, name, unused)
        overwriting = None if last is None else line_overwriting_result(module, last)
        if overwriting is not None:
            return overwriting
        for attention in evidence.attentions:
            reuse = _reused_tensor(evidence, attention)
            if reuse is not None:
                return reuse.line
        repeating = _repeated_attention(evidence, computed)
        if repeating is not None:
            return SourceLine.of(repeating.scores_step)
        pairing = pairing_siblings(computed) if role in ("query", "key") else None
        if pairing is not None:
            return pairing
        if module is not None and computed.module and returns_result(computed):
            return next(iter(lines_calling(module, computed.module)), SourceLine.of(computed))
    leaving_out = line_leaving_out(module, steps, name)
    if leaving_out is not None:
        return leaving_out
    for readers in _readers_of_siblings(steps, name):
        if len(readers) > 1:
            named = (step for step in readers if role_of(step.name) == role)
            return SourceLine.of(next(named, readers[-1]))
    if computed is None and role == "output":
        assert module is not None
        return last_return(module.get_submodule(parent_of(name)).forward)
    defined = name.removesuffix(".weight")
    parent, _, attribute = defined.rpartition(".")
    beside = SourceLine.of(None if module is None else _counterpart_meeting_itself(evidence, name))
    if computed is None and module is not None and beside is None:
        beside = _variable_called_as(module, name)
    if computed is None and module is not None and beside is None:
        beside = line_reading_relative(module.get_submodule(parent), attribute)
    return SourceLine.of(computed) or beside or attribute_definition(module, defined)


def _repeated_attention(evidence: Evidence, computed: Step) -> RecordedAttention | None:
    """Return the attention after a step that takes the keys and values which an earlier attention took."""
    taken: set[tuple[Source, Source]] = set()
    for attention in evidence.attentions:
        operands = attention.key_source, attention.value_source
        if operands in taken and attention.scores_step.index > computed.index:
            return attention
        taken.add(operands)
    return None


def _readers_of_siblings(steps: tuple[Step, ...], name: str) -> Iterator[list[Step]]:
    """Yield, for each parameter of a projection's parent, the steps that read it."""
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for source in step.inputs:
            if source.kind == "parameter" and parent_of(source.name) == parent_of(name):
                readers.setdefault(source.name, []).append(step)
    yield from readers.values()


def _reads(step: Step, parameter: str) -> bool:
    return any(source.kind == "parameter" and source.name == parameter for source in step.inputs)


# --- parts of a packed projection ----------------------------------------------------------------------


def _unused_part(evidence: Evidence, unused: set[int]) -> Finding | None:
    """Return a finding if an attention takes one part of a packed projection twice, and another part is unused."""
    for attention in evidence.attentions:
        reuse = _reused_tensor(evidence, attention)
        part = None if reuse is None else _first_unused_part(evidence, unused, attention)
        if reuse is not None and part is not None:
            return Finding(
                "projection-unused",
                "bug",
                f"{part.name!r} is split off a packed projection, but nothing uses it; {reuse.name!r} is used twice.",
                "",
                reuse.line,
            )
    return None


def _discarded_part(evidence: Evidence, unused: set[int]) -> Finding | None:
    """Return a finding if a part that a projection's name promises, as the values of "kv", is split off for nothing.

    A projection may be called several times, each time for another part.
    """
    steps = evidence.baseline.trace.steps
    for step in (steps[index] for index in sorted(unused)):
        parts = [it for it in steps if it.call == step.call]
        made = steps_from_projection(evidence.baseline, Source("step", step.name, step.index))[:1]
        name = next(iter(parameter_names(made)), "")
        letters = letters_of(own_name(name))
        calls = sum(_reads(it, name) for it in steps)
        is_split = step.operation in SPLITS and len(parts) == len(letters) > 0
        if calls != 1 or not is_split:
            continue
        if all(part.index in unused for part in parts):
            continue
        role = next(it for it in ROLES if it.startswith(letters[step.index - step.call]))
        return Finding(
            "projection-unused",
            "bug",
            f"The {role} part of {name} is split off, but nothing uses it.",
            "",
            SourceLine.of(step),
        )
    return None


def _first_unused_part(
    evidence: Evidence, unused: set[int], attention: RecordedAttention
) -> Step | None:
    """Return the first step that splits a part, which nothing uses, off a projection that an attention reads."""
    steps = evidence.baseline.trace.steps
    sources = (attention.query_source, attention.key_source, attention.value_source)
    paths = [steps_from_projection(evidence.baseline, source) for source in sources]
    projections = {step.index for path in paths for step in path if is_projection(step)}
    for step in steps:
        if step.index not in unused or step.operation not in SPLITS or 0 in step.shape:
            continue
        before = ancestors(steps, step)
        split = not any(steps[index].operation in RECURRENT for index in before)
        if split and projections.intersection(before):
            return step
    return None


def _unused_rows(evidence: Evidence) -> Finding | None:
    """Return a finding if an attention takes one part of a packed projection twice, and nothing reads another part."""
    for attention in evidence.attentions:
        sources = (attention.query_source, attention.key_source, attention.value_source)
        paths = [steps_from_projection(evidence.baseline, source) for source in sources]
        packed = {next(iter(parameter_names(path[:1])), "") for path in paths}
        operands = zip(ROWS, (attention.query, attention.key, attention.value), paths, strict=True)
        equal = (it for it in combinations(operands, 2) if torch.equal(it[0][1], it[1][1]))
        twice = next(equal, None)
        if twice is None or len(packed) != 1 or "" in packed:
            continue
        (first, _, _), (second, _, path) = twice
        name = packed.pop()
        if _has_idle_third(evidence, name):
            taking = [step for step in path if step.operation in SPLITS]
            return Finding(
                "projection-unused",
                "bug",
                f"{first.capitalize()} and {second} are the same part of {name}, and a third of it does not change "
                "the output.",
                "",
                SourceLine.of(taking[-1] if taking else attention.scores_step),
            )
    return None


def _has_idle_third(evidence: Evidence, name: str) -> bool:
    """Check whether the output has no gradient in a third of a parameter, the weights of a packed projection."""
    subject = evidence.subject.fresh()
    assert subject.module is not None
    parameter = subject.module.get_parameter(name)
    output = subject.run(evidence.inputs)
    if not parameter.requires_grad or not output.requires_grad:
        return False
    (gradient,) = torch.autograd.grad(output.square().sum(), parameter)
    return any(
        size % 3 == 0 and any(not part.any() for part in gradient.chunk(3, axis))
        for axis, size in enumerate(gradient.shape)
    )


# --- both ----------------------------------------------------------------------------------------------


class _Reuse(NamedTuple):
    """A tensor that an attention takes in two roles, and the line that takes it the second time."""

    name: str
    line: SourceLine | None


def _reused_tensor(evidence: Evidence, attention: RecordedAttention) -> _Reuse | None:
    """Return the tensor that an attention takes both as queries and keys, or as values and one of these."""
    query, key, value = (
        _projecting_step(evidence, source)
        for source in (attention.query_source, attention.key_source, attention.value_source)
    )
    if query == key:
        taken, given, product = attention.key_source, attention.query_source, attention.scores_step
        return _Reuse(given.name, _line_taking(evidence, taken, given, product))
    if value in (query, key):
        given = attention.query_source if value == query else attention.key_source
        taken, product = attention.value_source, attention.context_step
        return _Reuse(taken.name, _line_taking(evidence, taken, given, product))
    return None


def _line_taking(
    evidence: Evidence, taken: Source, given: Source, product: Step
) -> SourceLine | None:
    """Return the line from which on a reused tensor goes a way of its own, or else that of the product."""
    shared = {step.index for step in steps_from_projection(evidence.baseline, given)}
    path = steps_from_projection(evidence.baseline, taken)
    own = next((step for step in path if step.index not in shared), product)
    called = own.function != product.function
    line, first = own.line or 0, path[0].line if path else None
    alias = alias_before(own.file or "", line, first or line)
    return alias or (call_site(evidence.baseline, own) if called else None) or SourceLine.of(own)


def _projecting_step(evidence: Evidence, source: Source) -> int | None:
    """Return the index of the last step that projects an operand or splits it off a packed projection."""
    path = steps_from_projection(evidence.baseline, source)
    return max(
        (step.index for step in path if step.operation in SPLITS or is_projection(step)),
        default=None,
    )
