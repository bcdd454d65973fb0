"""A target as it treats its second sequence: the first one is held fixed, and the second one holds the tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.convention import (
    MEMORY,
    MEMORY_TOKENS,
    CallingConvention,
    output_candidates,
)
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.masks import find_masks
from heedful.conformance.calling.resizing import Resized, is_binary
from heedful.conformance.calling.roles import OfMemory, ids_of_memory
from heedful.conformance.calling.subject import Subject
from heedful.conformance.recording.inputs import Inputs
from heedful.observation.leaves import leaves_of

TRIAL_SIZES = (3, 5)  # B and T, unlike the number of tokens of the sequence that is held


def second_subject(subject: Subject, *, causal: bool) -> Subject | None:
    """Return the same target as a function of its second sequence, which has one row in all; None if it has none.

    Where all tokens but the queries are of the second sequence, the checks of the first one ask whether its mask acts.
    """
    convention = _convention(subject.convention, causal)
    if convention is None:
        return None
    caller = replace(
        subject, convention=convention, padding=None, attention_mask=None, positions=None, weak=()
    )
    inputs = caller.draw(*TRIAL_SIZES)
    if isinstance(attempt(lambda: caller.run(inputs)), Exception):
        return None
    skipped = _tensors_before_output(caller, inputs)
    caller = replace(caller, convention=replace(convention, skipped=skipped))
    masks = replace(find_masks(caller, None), attention_mask=None)
    acts = masks.padding is not None and masks.padding.effective
    if not acts and MEMORY not in subject.convention.constants.values():
        return None
    return replace(caller.with_masks(masks), max_length=None, cache_use=None, make_cache=None)


def _convention(convention: CallingConvention, causal: bool) -> CallingConvention | None:
    """Return how the second sequence alone is given; None if there is none.

    In cross-attention alone, all arguments for tokens but the first one hold the second sequence. Where queries see
    only the keys before them, both sequences are one.
    """
    convention = _with_second_of_example(convention)
    constants = convention.constants
    held = tuple(name for name, value in constants.items() if value is MEMORY)[:1]
    second = held or (() if causal else convention.names[1:])
    varying = any(_varies(it) for it in constants.values() if not isinstance(it, OfMemory))
    if not second or varying or convention.visible_keys is not None:
        return None
    first, features, ids = convention.names[0], convention.features, convention.vocabulary
    others = {name: convention.other_features.get(name, features) for name in second}
    rest = {
        name: it.constant if isinstance(it, OfMemory) else it
        for name, it in constants.items()
        if name not in second
    }
    return replace(
        convention,
        layout="(B, T, C)" if ids else convention.layout,
        vocabulary=0,
        names=second,
        features=others[second[0]],
        other_features={**others, first: features},
        constants={first: ids_of_memory(ids) if ids else MEMORY, **rest},
        pooled=True,
    )


def _tensors_before_output(caller: Caller, inputs: Inputs) -> int:
    """Return the number of tensors in the result that come before the rows of the first sequence; 0 without these."""
    with torch.no_grad(), caller.isolated():
        trace = caller.trace(caller.arguments(inputs))
    counts = [it.shape[1] if it.dim() > 2 else 0 for it in output_candidates(trace.result)]
    return counts.index(MEMORY_TOKENS) if MEMORY_TOKENS in counts else 0


def _with_second_of_example(convention: CallingConvention) -> CallingConvention:
    """Return a convention in which an example's second sequence is one, without the masks of its size."""
    constants = dict(convention.constants)
    name = next((it for it in constants if _is_sequence(constants[it])), None)
    if name is None or len(convention.names) > 1:
        return convention
    B, S, C = constants[name].value.shape
    kept = {it: value for it, value in constants.items() if not _is_mask(value, (B, S))}
    return replace(
        convention,
        constants={**kept, name: MEMORY},
        other_features={**convention.other_features, name: (C,)},
    )


def _is_sequence(constant: Any) -> bool:
    """Check whether a constant is a tensor of an example, of vectors for other tokens than those of the target."""
    if not isinstance(constant, Resized) or not isinstance(constant.value, Tensor):
        return False
    value = constant.value
    return value.is_floating_point() and constant.axes.of(value.shape) == "B  "


def _is_mask(constant: Any, shape: tuple[int, int]) -> bool:
    value = constant.value if isinstance(constant, Resized) else None
    return isinstance(value, Tensor) and tuple(value.shape) == shape and is_binary(value)


def _varies(constant: Any) -> bool:
    """Check whether a constant is one for other numbers of tokens."""
    if isinstance(constant, Resized):
        tensors = (leaf for _, leaf in leaves_of(constant.value) if isinstance(leaf, Tensor))
        return any("T" in constant.axes.of(it.shape) for it in tensors)
    return callable(constant)
