"""Attention modules of published packages, to measure how well `heedful check` understands code that it never saw."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

# The operators of torchvision as PyPI has it need torch for CUDA. Its models do not need them, but its import does.
_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


def _has_operators() -> bool:
    """Try to load the operators of torchvision."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    library = Path(spec.origin).with_name("_C.so")
    try:
        torch.ops.load_library(library)
    except OSError:
        return False
    return True


if not _has_operators():
    for name in ("nms", "qnms"):
        _OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
