"""What a target should do: as the caller says, or else as the target itself declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import is_from_transformers
from heedful.conformance.evidence.attention import FUSED, fused_arguments
from heedful.conformance.recording.inputs import Observation

CAUSAL_NAMES = ("is_causal", "causal")
WINDOW_NAMES = ("window", "window_size", "sliding_window", "local_window", "attention_window")
HEADS_NAMES = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead", "heads", "h")


@dataclass(frozen=True)
class Expected:
    """What the caller says; None where nothing is said."""

    causal: bool | None = None
    window: int | None = None
    num_heads: int | None = None

    def window_of(self, module: nn.Module | None) -> int | None:
        """As told, or as the module holds it under one of the usual names."""
        return self.window if self.window is not None else _number(module, WINDOW_NAMES)


@dataclass(frozen=True)
class Expectations:
    """What findings are judged by.

    Attributes:
        causal: whether no query may see a later key; None if nothing says so.
        why_causal: what says so: "it was said", "it holds a triangular mask".
        window: how many keys each query sees, its own included; None if nothing says so.
        num_heads: how many heads; None if nothing says so.
    """

    causal: bool | None
    why_causal: str
    window: int | None
    num_heads: int | None


def expectations(told: Expected, subject: Subject, base: Observation) -> Expectations:
    """Put together what is known before anything is judged."""
    causal, why = _causal(told, subject, base)
    heads = told.num_heads or _number(subject.module, HEADS_NAMES)
    return Expectations(causal, why, told.window_of(subject.module), heads)


def _causal(told: Expected, subject: Subject, base: Observation) -> tuple[bool | None, str]:
    if told.causal is not None:
        return told.causal, "it was said to be" if told.causal else "it was said not to be"
    for module in () if subject.module is None else subject.module.modules():
        if is_from_transformers(module):
            continue  # there, is_causal tells SDPA what the mask from outside tells all others
        for name in CAUSAL_NAMES:
            if isinstance(declared := getattr(module, name, None), bool):
                return declared or None, f"its attribute {name} says so"
    if any(it.operation == FUSED and fused_arguments(it)["is_causal"] for it in base.trace):
        return True, "it calls PyTorch's attention with is_causal"
    told_from_outside = is_from_transformers(subject.module)
    if not told_from_outside and any(is_triangular(tensor) for tensor in _tensors(base)):
        return True, "it makes a triangular mask"
    if "causal" in subject.name.lower():
        return True, "its name says so"
    return None, ""


def _tensors(base: Observation) -> Iterator[Tensor]:
    """All that may be a mask."""
    yield from (it for (kind, _), it in base.values.items() if kind not in ("input", "parameter"))
    yield from (step.value for step in base.trace if isinstance(step.value, Tensor))


def is_triangular(tensor: Tensor) -> bool:
    """Whether a tensor (…, T, T) holds one value on and below some diagonal near the main one, and another above."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 3:
        return False
    matrix = tensor.reshape(-1, *tensor.shape[-2:])
    if len(matrix) == 0 or not (matrix == matrix[:1]).all():
        return False
    matrix = matrix[0] == matrix[0, -1, 0]
    return any(torch.equal(matrix, torch.ones_like(matrix).tril(d)) for d in (-1, 0, 1))


def _number(module: nn.Module | None, names: tuple[str, ...]) -> int | None:
    """The first positive whole number that a module, or one within it, or its config, holds under one of the names."""
    for part in () if module is None else module.modules():
        for holder in (part, getattr(part, "config", None)):
            for name in names:
                value = getattr(holder, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None
