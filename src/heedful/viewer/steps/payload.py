"""The data of a view of steps: nodes with their rules, and the listings of their code."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from heedful.listing import Listing, listings_of
from heedful.viewer.data import Arrays, label_text
from heedful.viewer.steps.node import Node
from heedful.viewer.steps.nodes import nodes_of
from heedful.viewer.steps.recording import Recording

LONGEST_STATEMENT = 160  # characters of a statement that stands for a formula


def run_of(
    recording: Recording, arrays: Arrays, prefix: str, largest: int
) -> tuple[dict[str, Any], tuple[Listing, ...]]:
    """Return a recording as the script reads it, and the listings of its code.

    Args:
        recording: The recording.
        arrays: Receives its arrays.
        prefix: What the identifiers of its lines begin with.
        largest: The number of entries of one value that the page has room for.
    """
    nodes, attentions = nodes_of(recording, largest)
    places = [node.place for node in nodes if node.place is not None and node.shown]
    listings = listings_of(places)
    listed = {(it.file, number) for it in listings for number, _ in it.lines}
    run = {
        "title": label_text(recording.title),
        "labels": [label_text(label) for label in recording.labels],
        "nodes": [_node_as_json(node, arrays, listed, prefix, listings) for node in nodes],
        "attentions": [attention.as_json() for attention in attentions],
    }
    return run, listings


def line_id(prefix: str, listings: tuple[Listing, ...], file: str, line: int) -> str:
    """Return the identifier of a line of code in a page."""
    files = list(dict.fromkeys(it.file for it in listings))
    return f"{prefix}-{files.index(file)}-{line}"


def _node_as_json(
    node: Node,
    arrays: Arrays,
    listed: set[tuple[str, int]],
    prefix: str,
    listings: tuple[Listing, ...],
) -> dict[str, Any]:
    return {
        "name": label_text(node.name),
        "kind": node.kind,
        "operation": node.operation,
        "shape": list(node.shape),
        "tensor": None if node.value is None else arrays.add(node.value),
        "axes": list(node.axes),
        "role": node.role,
        "rule": None if node.rule is None else _rule_as_json(node, arrays),
        "line": line_id(prefix, listings, *node.place) if node.place in listed else None,
        "module": node.module,
        "about": label_text(node.about),
        "source": label_text(node.source) if len(node.source) <= LONGEST_STATEMENT else "",
        "notes": node.notes,
        "unused": node.unused,
        "shown": node.shown,
    }


def _rule_as_json(node: Node, arrays: Arrays) -> dict[str, Any]:
    written = {}
    for name, value in node.parts.items():
        if isinstance(value, Tensor):
            whole = node.value is not None and tuple(node.value.shape) == node.shape
            written[name] = arrays.add(value) if whole else None
        elif isinstance(value, float) and not math.isfinite(value):
            written[name] = str(value).replace("inf", "Infinity").replace("nan", "NaN")
        else:
            written[name] = value
    return written
