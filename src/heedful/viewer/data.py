"""The data of a page: JSON for what is small, and the bytes of all arrays as one text in base64."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 8


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


def label_text(label: object) -> str:
    """Return a label as a page contains it: at most 1000 characters, without halves of pairs.

    >>> label_text("a" * 2000) == "a" * 1000 + "…"
    True
    """
    text = re.sub(r"[\ud800-\udfff]", "\ufffd", str(label))
    return text if len(text) <= 1000 else f"{text[:1000]}…"


def as_script_text(content: object) -> str:
    """Return JSON that can stand within a script element: it has neither a tag nor a comment.

    >>> as_script_text("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
