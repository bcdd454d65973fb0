"""Attention to latents: one tensor holds the keys and the values (DeepSeek-AI 2024).

The matrices that would make keys and values of a latent are absorbed: each head multiplies its queries by its own one,
and attends to the latents themselves.
"""

from __future__ import annotations

import torch

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.recording.dataflow import JOINING, PRODUCTS, SCALINGS, VIEWS, ancestors
from heedful.conformance.recording.observation import Observation, value_of
from heedful.observation import Source, Step


def values_are_keys(attention: RecordedAttention) -> bool:
    """Check whether the values are the keys, or the first or the last features of them."""
    key, value = attention.key, attention.value
    Dv = value.shape[-1]
    if key.shape[:2] != value.shape[:2] or Dv > key.shape[-1]:
        return False
    return torch.equal(key[..., :Dv], value) or torch.equal(key[..., -Dv:], value)


def size_of_comparison(observation: Observation, attention: RecordedAttention) -> int:
    """Return the number of features by which queries and keys are compared.

    Where queries are multiplied by absorbed matrices, it is the number that they had before: their products with the
    latents are those of these queries with the keys that the matrices would make of the latents.
    """
    multiplied = attention.query.shape[-1]
    if not values_are_keys(attention):
        return multiplied
    return _size_before_absorption(observation, attention.query_source, multiplied)


def _size_before_absorption(observation: Observation, source: Source, size: int) -> int:
    """Return how many features a tensor of `size` had before each head multiplied it by a matrix of its own.

    Parts that are joined count each for themselves.
    """
    steps = observation.trace.steps
    if source.step is None:
        return size
    step = steps[source.step]
    if step.operation in PRODUCTS:
        return _size_multiplied_by_heads(observation, step) or size
    read = [it for it in step.inputs if it.step is not None]
    if step.shape[-1:] != (size,) or not read:
        return size
    if step.operation in JOINING:
        widths = [steps[it.step].shape[-1] for it in read if it.step is not None]
        pairs = zip(read, widths, strict=True)
        parts = [_size_before_absorption(observation, it, width) for it, width in pairs]
        return sum(parts) if sum(widths) == size else size
    if step.operation in VIEWS or step.operation in SCALINGS:
        return _size_before_absorption(observation, read[0], size)
    return size


def _size_multiplied_by_heads(observation: Observation, product: Step) -> int | None:
    """Return the features that a product with trained matrices, one for each head, sums over; None for another one."""
    trained = [_is_trained(observation, it) for it in product.inputs]
    if trained.count(True) != 1 or len(trained) != 2:
        return None
    matrices, multiplied = (
        value_of(observation, product.inputs[trained.index(it)]) for it in (True, False)
    )
    if matrices is None or multiplied is None or matrices.dim() < 3 or multiplied.dim() < 4:
        return None
    return multiplied.shape[-1]


def _is_trained(observation: Observation, source: Source) -> bool:
    """Check whether a tensor is made of parameters alone."""
    if source.step is None:
        return source.kind == "parameter"
    steps = observation.trace.steps
    behind = ancestors(steps, steps[source.step])
    return {read.kind for it in behind for read in steps[it].inputs} <= {"parameter", "step"}
