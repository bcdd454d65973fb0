"""Probe: keys make the scores, and values make the context."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.latents import values_are_keys
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.projection_names import own_name, role_of
from heedful.conformance.recording.assignments import variables_read
from heedful.conformance.recording.dataflow import (
    PRODUCTS,
    SOFTMAXES,
    behind_views,
    is_projection,
    operands_of,
    parameter_names,
    steps_behind,
    steps_from_projection,
)
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

KEY_NAMES: frozenset[str] = frozenset(
    (
        *("key", "keys", "k", "wk", "w_k", "k_proj", "to_k", "w_key", "wkey", "key_proj"),
        *("k_linear", "linear_k", "xk", "key_layer"),
    )
)
VALUE_NAMES: frozenset[str] = frozenset(
    (
        *("value", "values", "v", "wv", "w_v", "v_proj", "to_v", "w_value", "wvalue", "value_proj"),
        *("v_linear", "linear_v", "xv", "value_layer"),
    )
)


@probe("keys-values-swapped")
def key_value_roles(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compare the names of the tensors in the two products with the roles that they play."""
    for attention in evidence.attentions:
        finding = _swapped(evidence, attention) or _projected_twice(evidence, attention)
        if finding is not None:
            yield finding
            return
    finding = _exchanged_arguments(evidence) or _stored_under_queries(evidence)
    if finding is not None:
        yield finding


def _stored_under_queries(evidence: Evidence) -> Finding | None:
    """Return a finding if a memory sums products of values and queries over the tokens, in place of those of keys."""
    steps, T = evidence.baseline.trace.steps, evidence.inputs.sizes[1]
    has_keys = any(role_of(own_name(it)) == "key" for it in parameter_names(steps))
    for step in steps:
        operands = operands_of(step)
        if step.operation not in PRODUCTS or len(operands) != 2 or T in step.shape:
            continue
        behind = [[steps[it] for it in steps_behind(steps, operand)] for operand in operands]
        roles = [
            {role_of(own_name(it)) for it in parameter_names(made)} - {None} for made in behind
        ]
        weighted = any(it.operation in SOFTMAXES for made in behind for it in made)
        if {"query"} in roles and {"value"} in roles and not weighted and has_keys:
            return Finding(
                "keys-values-swapped",
                "bug",
                "A memory of the tokens sums products of queries and values: what is stored under a query is not found "
                "by its key.",
                "",
                SourceLine.of(step),
                "Store the values under the keys: memory = key.transpose(-2, -1) @ value.",
            )
    return None


def _exchanged_arguments(evidence: Evidence) -> Finding | None:
    """Return a finding if the layer of queries gets the argument for keys, and that of keys the one for queries."""
    steps = evidence.baseline.trace.steps
    given: dict[tuple[str, str], Step] = {}
    for step in (it for it in steps if is_projection(it)):
        parameters = (own_name(it) for it in parameter_names([step]))
        read = (behind_views(steps, it) for it in step.inputs)
        arguments = (it for it in read if it.kind == "input")
        for parameter, argument in product(parameters, arguments):
            given[role_of(parameter) or "", role_of(argument.name) or ""] = step
    of_queries, of_keys = given.get(("query", "key")), given.get(("key", "query"))
    right = ("query", "query") in given or ("key", "key") in given
    if of_queries is None or of_keys is None or right:
        return None
    return Finding(
        "keys-values-swapped",
        "bug",
        "The layer of queries gets the argument for keys, and that of keys the argument for queries: the output has a "
        "row for each key.",
        "",
        SourceLine.of(of_keys),
        "Project the queries by the layer that is named after them, and the keys by theirs.",
    )


def _swapped(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if a product takes a tensor, or a projection, with the other one's name."""
    key_path = steps_from_projection(evidence.baseline, attention.key_source)
    value_path = steps_from_projection(evidence.baseline, attention.value_source)
    query_path = steps_from_projection(evidence.baseline, attention.query_source)
    if any(it.operation in PRODUCTS and not is_projection(it) for it in query_path + value_path):
        return None  # what has several tokens in it, such as a memory, is no query and no value
    if not value_path and key_path and _projects(evidence, key_path[0], attention.value_source):
        return None  # the tokens of a memory are the values, and their projections the keys
    if values_are_keys(attention) and not _has_another(evidence, attention):
        return None  # one tensor holds both, as the latents do in latent attention
    key_name = _variable(key_path, attention.key_source)
    value_name = _variable(value_path, attention.value_source)
    key_words, value_words = _parameter_words(key_path), _parameter_words(value_path)
    projections_swapped = bool(
        key_words & VALUE_NAMES and value_words & KEY_NAMES and key_words != value_words
    )
    if not projections_swapped and key_name not in VALUE_NAMES and value_name not in KEY_NAMES:
        return None
    if projections_swapped and key_name not in VALUE_NAMES:
        step = key_path[0]
    elif value_name in KEY_NAMES:
        step = attention.context_step
    else:
        step = attention.scores_step
    origin = f", made by {parameter_names(key_path[:1])[0]}" if projections_swapped else ""
    return Finding(
        "keys-values-swapped",
        "bug",
        f"Queries are multiplied by {key_name!r}{origin}, and the weights by {value_name!r}.",
        "",
        SourceLine.of(step),
    )


def _has_another(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether something named after keys or values takes no part in the keys and values of an attention."""
    paths = (
        steps_from_projection(evidence.baseline, source)
        for source in (attention.key_source, attention.value_source)
    )
    own = [step for path in paths for step in path]
    used, place = {step.index for step in own}, attention.context_step.module
    others = (it for it in evidence.baseline.trace if it.module == place and it.index not in used)
    module = evidence.subject.module
    parameters = () if module is None else module.named_parameters()
    words = {it for name, _ in parameters for it in name.lower().split(".")}
    named = {it.name.lower() for it in others} | {*evidence.subject.target.parameters}
    read = {it for name in parameter_names(own) for it in name.lower().split(".")}
    return not (KEY_NAMES | VALUE_NAMES).isdisjoint(named | (words - read))


def _projects(evidence: Evidence, step: Step, source: Source) -> bool:
    """Check whether a step projects a tensor."""
    steps = evidence.baseline.trace.steps
    read = [behind_views(steps, it) for it in step.inputs if it.kind != "parameter"]
    return is_projection(step) and behind_views(steps, source) in read


def _projected_twice(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if values are projected from the keys, whose projection has taken over the tokens' variable."""
    keys, values = (
        next(iter(steps_from_projection(evidence.baseline, source)), None)
        for source in (attention.key_source, attention.value_source)
    )
    if keys is None or values is None or not (is_projection(keys) and is_projection(values)):
        return None
    made = Source("step", keys.name, keys.index)
    from_keys = keys is not values and _projects(evidence, values, made)
    if not from_keys or keys.name not in variables_read(keys.file or "", keys.line or 0):
        return None
    return Finding(
        "keys-values-swapped",
        "bug",
        f"The values are projected from the projected keys, which have taken over the name {keys.name!r}.",
        "",
        SourceLine.of(values),
        "Project the values before the keys take over the variable, or give the keys another name.",
    )


def _variable(path: list[Step], source: Source) -> str:
    """Return the last variable that held a tensor on its way to the product, if possible one named after a role."""
    names = [step.name.lower() for step in path if "·" not in step.name]
    conventional = [name for name in names if name in KEY_NAMES | VALUE_NAMES]
    return (conventional or names or [source.name.lower()])[-1]


def _parameter_words(path: list[Step]) -> set[str]:
    """Return the parts of the dotted names of the parameters that a path's first step reads."""
    names = parameter_names(path[:1])
    return {word for name in names for word in name.lower().split(".")} - {"weight", "bias"}
