"""Remedies of dropout: its mode, its place and its factor."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from heedful.conformance.fixing.remedies.softmax import softmax_input
from heedful.conformance.fixing.site import Edit, Site
from heedful.conformance.fixing.syntax import (
    argument,
    atom,
    called,
    code,
    descendants,
    names_in,
    with_argument,
)


def in_training_only(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Pass the mode to the function that drops."""
    if isinstance(node, cst.Call) and called(node) in ("dropout", "dropout_", "feature_dropout"):
        position, keyword = (
            (2, "train") if code(node.func).startswith("torch.d") else (2, "training")
        )
        yield from (
            code(with_argument(node, position, keyword, mode)) for mode in _modes(site, node)
        )


def probability_in_training_only(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Pass a probability of 0 to PyTorch's fused attention in eval mode."""
    if isinstance(node, cst.Call) and called(node) == "scaled_dot_product_attention":
        given = argument(node, 4, "dropout_p")
        if given is not None:
            for mode in _modes(site, node):
                probability = f"{code(given.value)} if {mode} else 0.0"
                yield code(with_argument(node, 4, "dropout_p", probability))
    elif isinstance(site.parents.get(node), cst.Assign):
        yield from (f"{atom(node)} if {mode} else 0.0" for mode in _modes(site, node))


def _modes(site: Site, node: cst.CSTNode) -> list[str]:
    """Return how the mode of the module can be read."""
    if site.owner is not None:
        return ["self.training"]
    return [f"{name}.training" for name in names_in(node) if name in site.parameters]


def module_instead(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Call the module's own dropout, which nothing uses, instead of something else."""
    unused = [name for name in site.unread_attributes if "drop" in name]
    if not isinstance(site.parents.get(node), cst.Assign) and called(node) != "dropout":
        return
    for part in descendants(node):
        if isinstance(part, cst.Name) and part.value in site.assigned:
            yield from (f"self.{name}({part.value})" for name in unused)
    if isinstance(node, cst.Call) and called(node) == "dropout" and node.args:
        yield from (f"self.{name}({code(node.args[0].value)})" for name in unused)


def around_softmax(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Drop what the softmax returns instead of what it reads."""
    scores = softmax_input(site)
    if not isinstance(node, cst.Call) or called(node) != "softmax" or scores is None:
        return
    if isinstance(scores, cst.Call) and "drop" in called(scores) and scores.args:
        inner = cst.parse_expression(atom(scores.args[0].value))
        softmax = node.deep_replace(scores, inner)
        assert isinstance(softmax, cst.Call)
        rest = [code(arg) for arg in scores.args[1:]]
        yield f"{code(scores.func)}({', '.join([code(softmax), *rest])})"


def without_dropout(node: cst.BaseExpression, site: Site) -> Iterator[str]:
    """Leave out a dropout."""
    if isinstance(node, cst.Call) and "drop" in called(node) and node.args:
        yield code(node.args[0].value)


def after_softmax(site: Site) -> Iterator[Edit]:
    """Move a statement that drops from the scores or the context to the weights."""
    dropped = _dropped(site)
    if dropped is None:
        return
    target, call = dropped
    for place in [*site.earlier, *(found for found in site.block if found.line > site.line)]:
        if softmax_input(place) is None or len(place.targets) != 1:
            continue
        weights = place.targets[0]
        arguments = ", ".join([weights, *(code(arg) for arg in call.args[1:])])
        moved = cst.parse_statement(f"{weights} = {code(call.func)}({arguments})\n")
        kept = place.statement
        source = code(call.args[0].value)
        if place.line > site.line and source != target:  # the softmax reads what is dropped
            renamed = kept.deep_replace(
                next(node for node in place.expressions if code(node) == target),
                cst.parse_expression(source),
            )
            assert isinstance(renamed, cst.SimpleStatementLine)
            kept = renamed
        after = cst.FlattenSentinel([kept, moved])
        yield {place.statement: after, site.statement: cst.RemoveFromParent()}


def _dropped(site: Site) -> tuple[str, cst.Call] | None:
    """Return the variable that a statement assigns and the dropout whose result it is."""
    match site.small:
        case cst.Assign(
            targets=[cst.AssignTarget(cst.Name(target))], value=cst.Call(args=[_, *_]) as call
        ) if "drop" in called(call):
            return target, call
    return None
