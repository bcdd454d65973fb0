"""The attentions within a run: from each softmax back to the product of queries and keys, and on to the context."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from heedful.viewer.steps.node import Node


@dataclass(frozen=True)
class FoundAttention:
    """The positions of an attention's nodes in their run.

    Attributes:
        title: The module that it is in.
        queries, keys, scores, weights: Every attention has them.
        values, scaled, mask, masked, dropped, context: None where it has none.
    """

    title: str
    queries: int
    keys: int
    scores: int
    weights: int
    values: int | None = None
    scaled: int | None = None
    mask: int | None = None
    masked: int | None = None
    dropped: int | None = None
    context: int | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def find_attentions(nodes: list[Node]) -> list[FoundAttention]:
    """Return the attentions of a run, and note the role of each node in them."""
    found = []
    for position, node in enumerate(nodes):
        followed = node.operation.startswith("softmax") and node.follows is not None
        if node.kind_of_rule == "softmax" or followed:
            attention = _attention_around(nodes, position)
            if attention is not None:
                found.append(attention)
                _note_roles(nodes, attention)
    titles = [it.title for it in found]
    if len(set(titles)) < len(titles):
        found = [replace(it, title=f"{it.title} #{i}".strip()) for i, it in enumerate(found)]
    return found


def _attention_around(nodes: list[Node], softmax: int) -> FoundAttention | None:
    scaled = mask = masked = None
    at = nodes[softmax].parts.get("of", nodes[softmax].follows)
    while (kind := nodes[at].kind_of_rule) in ("scale", "mask", "combine", "move") or (
        nodes[at].follows is not None
    ):
        if kind == "scale":
            scaled = at
        elif kind in ("mask", "combine"):
            masked = at
            mask = nodes[at].parts["mask"] if kind == "mask" else nodes[at].parts["terms"][1]
        terms = nodes[at].parts.get("terms", (nodes[at].follows,))
        at = nodes[at].parts.get("of", terms[0])
    scores = nodes[at]
    if scores.kind_of_rule != "product" or nodes[scores.parts["right"]].kind == "parameter":
        return None
    dropped = _reader(nodes, softmax, "dropout", "of")
    gathered = softmax if dropped is None else dropped
    context = _reader(nodes, gathered, "product", "left")
    return FoundAttention(
        title=nodes[softmax].module,
        queries=scores.parts["left"],
        keys=scores.parts["right"],
        scores=at,
        weights=softmax,
        values=None if context is None else nodes[context].parts["right"],
        scaled=scaled,
        mask=mask,
        masked=masked,
        dropped=dropped,
        context=context,
    )


def _reader(nodes: list[Node], position: int, kind: str, part: str) -> int | None:
    """Return the first node whose rule of a kind reads a node as a part."""
    for i, node in enumerate(nodes):
        if node.kind_of_rule == kind and node.parts[part] == position:
            return i
    return None


def _moves_of(nodes: list[Node], position: int) -> list[int]:
    """Return the nodes that hold the entries of a node in another order."""
    return [
        i for i, it in enumerate(nodes) if it.kind_of_rule == "move" and it.parts["of"] == position
    ]


def _note_roles(nodes: list[Node], attention: FoundAttention) -> None:
    for role in ("scores", "scaled", "mask", "masked", "weights", "dropped", "context"):
        position = getattr(attention, role)
        if position is not None:
            nodes[position].role = role
    for role in ("queries", "keys", "values"):
        position = getattr(attention, role)
        while position is not None and nodes[position].kind_of_rule == "move":
            nodes[position].role = "split"
            position = nodes[position].parts["of"]
        if position is not None:
            _note_projection(
                nodes,
                position,
                role,
                f"{role.removesuffix('s').replace('querie', 'query')} weights",
            )
    at = attention.context
    while at is not None and (moves := _moves_of(nodes, at)):
        for position in moves:
            nodes[position].role = "merged"
        at = moves[-1]
    output = None if at is None else _reader(nodes, at, "product", "left")
    if output is not None and nodes[nodes[output].parts["right"]].kind == "parameter":
        _note_projection(nodes, output, "output", "output weights")


def _note_projection(nodes: list[Node], position: int, role: str, weights: str) -> None:
    node = nodes[position]
    if node.kind_of_rule != "product":
        if node.kind == "input":
            node.role = "tokens"
        return
    node.role = role
    if nodes[node.parts["right"]].kind == "parameter":
        nodes[node.parts["right"]].role = weights
    if nodes[node.parts["left"]].kind == "input":
        nodes[node.parts["left"]].role = "tokens"
