"""Tests that recordings of the textbook have the names of its variables."""

import pytest
import torch

from heedful.observation import record
from heedful.textbook import (
    CausalAttention,
    EinsumMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
    causal,
    simplified,
)

PROJECTED = ["queries", "keys", "values"]
SPLIT = ["queries_by_head", "keys_by_head", "values_by_head"]
CAUSAL = ["scores", "scaled_scores", "mask", "masked_scores", "weights", "dropped_weights"]
HEADS = {"context_length": 8, "dropout": 0.1, "num_heads": 2}

EXPECTED = {
    SelfAttentionV1(3, 4): [*PROJECTED, "scores", "scaled_scores", "weights", "context"],
    SelfAttentionV2(3, 4): [*PROJECTED, "scores", "scaled_scores", "weights", "context"],
    CausalAttention(3, 4, context_length=8, dropout=0.1): [*PROJECTED, *CAUSAL, "context"],
    MultiHeadAttentionWrapper(3, 4, **HEADS): [*PROJECTED, *CAUSAL, "context"],
    MultiHeadAttention(3, 4, **HEADS): [
        *PROJECTED,
        *SPLIT,
        *CAUSAL,
        "context_by_head",
        "context",
        "output",
    ],
    EinsumMultiHeadAttention(3, 4, **HEADS): [
        *PROJECTED,
        *SPLIT,
        *CAUSAL,
        "context_by_head",
        "context",
    ],
}


def variables(trace) -> list[str]:
    """Return the names except those of intermediate results, which look like variable·operation."""
    return [name for name in trace.names if "·" not in name]


@pytest.mark.parametrize("attention", EXPECTED, ids=lambda module: type(module).__name__)
@pytest.mark.parametrize("shape", [(6, 3), (2, 6, 3)], ids=str)
def test_recorded_names_of_modules(attention, shape):
    trace = record(attention, torch.randn(shape))
    assert variables(trace) == EXPECTED[attention]
    assert not any(step.unused for step in trace)


@pytest.mark.parametrize("attention", EXPECTED, ids=lambda module: type(module).__name__)
def test_the_named_steps_are_consistent(attention):
    trace = record(attention.eval(), torch.randn(2, 6, 3))
    weights = trace["weights"].value
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    scores = trace["masked_scores" if "mask" in trace else "scaled_scores"].value
    torch.testing.assert_close(torch.softmax(scores, dim=-1), weights)
    if "mask" in trace:
        assert torch.equal(scores.isfinite(), trace["mask"].value.expand_as(scores))
        assert torch.equal(trace["dropped_weights"].value, weights)
    final = trace["output" if isinstance(attention, MultiHeadAttention) else "context"]
    assert torch.equal(final.value, trace.result)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (simplified.attend, ["scores", "weights", "context"]),
        (
            simplified.weights_by_stable_softmax,
            ["largest", "exponentials", "total", "weights"],
        ),
        (
            causal.weights_by_renormalising,
            ["mask", "full_weights", "kept_weights", "row_sums", "weights"],
        ),
        (causal.weights_by_minus_infinity, ["mask", "masked_scores", "weights"]),
    ],
)
def test_recorded_names_of_functions(function, names):
    assert variables(record(function, torch.rand(4, 4))) == names


def test_the_wrapper_records_every_head_and_then_their_concatenation():
    trace = record(MultiHeadAttentionWrapper(3, 2, context_length=6, num_heads=3), torch.rand(6, 3))
    assert [step.module for step in trace.all("weights")] == ["heads.0", "heads.1", "heads.2"]
    assert [step.shape for step in trace.all("context")] == [(6, 2)] * 3 + [(6, 6)]
