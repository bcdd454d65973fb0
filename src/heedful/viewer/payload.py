"""The data of a page: JSON for what is small, and the bytes of all arrays as one text in base64."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import torch
from torch import Tensor

from heedful.listing import Listing, listings_of
from heedful.viewer.node import Node
from heedful.viewer.nodes import label_text, nodes_of
from heedful.viewer.recording import Recording

ALIGNMENT = 8
LONGEST_STATEMENT = 160  # characters of a statement that stands for a formula


class Arrays:
    """Arrays one after another, as a page's script reads them."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, tensor: Tensor) -> dict[str, Any]:
        """Append a tensor and return where it is."""
        code, dtype = _dtype_of(tensor)
        offset = self.add_bytes(tensor.detach().cpu().to(dtype).contiguous().numpy().tobytes())
        return {"dtype": code, "shape": list(tensor.shape), "offset": offset}

    def add_bytes(self, content: bytes) -> int:
        """Append bytes and return where they are."""
        self._bytes.extend(bytes(-len(self._bytes) % ALIGNMENT))
        offset = len(self._bytes)
        self._bytes.extend(content)
        return offset

    def content(self) -> bytes:
        return bytes(self._bytes)

    def base64(self) -> str:
        return base64.b64encode(self._bytes).decode()


def _dtype_of(tensor: Tensor) -> tuple[str, torch.dtype]:
    if tensor.dtype in (torch.bool, torch.uint8):
        return "u1", torch.uint8
    if tensor.dtype == torch.uint16:
        return "u2", torch.uint16
    if tensor.dtype == torch.float64:
        return "f8", torch.float64
    if tensor.is_floating_point():
        return "f4", torch.float32
    small = not tensor.numel() or max(tensor.max().item(), -tensor.min().item()) < 2**31
    return ("i4", torch.int32) if small else ("f8", torch.float64)


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


def as_script_text(content: object) -> str:
    """Return JSON that can stand within a script element: it has neither a tag nor a comment.

    >>> as_script_text("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
