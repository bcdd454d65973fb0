"""Tests that the textbook's code reproduces the figures printed in the source documents."""

import functools
import math
from collections.abc import Callable

import pytest
import torch
from printed import FIGURES, INPUTS, tensor
from torch import Tensor

from heedful.observation import record
from heedful.textbook import (
    CausalAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
    causal,
    demonstrations,
    simplified,
)

REPRODUCTIONS: dict[str, Callable[[], Tensor]] = {}


def given(figure_id: str) -> Tensor:
    return tensor(FIGURES[figure_id]["given"])


A, B, C = INPUTS["A"], INPUTS["B"], INPUTS["C"]
BATCH = torch.stack([C, C])


def reproduces(figure_id: str, *, seed: int | None = None):
    """Register a function that reproduces a figure. `seed` is set before the function runs."""

    def register(function: Callable[[], Tensor]):
        assert figure_id not in REPRODUCTIONS, f"{figure_id} has two reproductions"
        assert FIGURES[figure_id].get("seed") == seed, f"{figure_id} states another seed"

        @functools.wraps(function)
        def seeded() -> Tensor:
            if seed is not None:
                torch.manual_seed(seed)
            return function()

        REPRODUCTIONS[figure_id] = seeded
        return function

    return register


def test_every_figure_has_a_reproduction():
    assert REPRODUCTIONS.keys() == FIGURES.keys()


@pytest.mark.parametrize("figure_id", FIGURES)
def test_figure(figure_id):
    figure = FIGURES[figure_id]
    torch.testing.assert_close(
        REPRODUCTIONS[figure_id]().detach(),
        tensor(figure["expected"]),
        atol=figure["tolerance"],
        rtol=0,
    )


# --- simplified attention ----------------------------------------------------------------------------

for name, tokens in {"A": A, "C": C}.items():
    reproduces(f"{name}.scores.query1")(
        lambda tokens=tokens: simplified.scores_of_one(tokens[1], tokens)
    )
    reproduces(f"{name}.weights.query1")(
        lambda tokens=tokens: record(simplified.attend_one, tokens, 1)["weights"].value
    )
    reproduces(f"{name}.context.query1")(lambda tokens=tokens: simplified.attend_one(tokens, 1))
    reproduces(f"{name}.context.all")(lambda tokens=tokens: simplified.attend(tokens))


@reproduces("C.scores.all")
def _():
    by_loops = simplified.scores_by_loops(C)
    by_matmul = simplified.scores_by_matmul(C)
    torch.testing.assert_close(by_loops, by_matmul)
    return by_loops


@reproduces("C.weights.all")
def _():
    return record(simplified.attend, C)["weights"].value


@reproduces("softmax.unscaled")
def _():
    return torch.tensor(demonstrations.sharpness(given("softmax.unscaled"), 1).weights)


@reproduces("softmax.times8")
def _():
    return torch.tensor(demonstrations.sharpness(given("softmax.times8"), 8).weights)


@reproduces("A.weights.scaled_from_printed_scores")
def _():
    scores = given("A.weights.scaled_from_printed_scores")
    return simplified.weights_by_stable_softmax(scores / math.sqrt(2))


@reproduces("A.dropout.survivors")
def _():
    weights = record(simplified.attend, A)["weights"].value
    effect = demonstrations.effect_of_dropout(weights, 0.3)
    assert effect.min_growth == pytest.approx(effect.max_growth, rel=1e-6)
    survives = tensor(FIGURES["A.dropout.survivors"]["expected"]) > 0
    return torch.where(survives, weights * effect.max_growth, 0.0)


# --- self-attention ----------------------------------------------------------------------------------


@reproduces("B.self_attention.parameters", seed=123)
def _():
    return SelfAttentionV1(3, 2)(B)


@reproduces("B.self_attention.linear", seed=123)
def _():
    return SelfAttentionV2(3, 2)(B)


@reproduces("C.self_attention.parameters", seed=246)
def _():
    return SelfAttentionV1(3, 2)(C)


@reproduces("C.self_attention.linear", seed=123)
def _():
    return SelfAttentionV2(3, 2)(C)


@reproduces("C.self_attention.transferred", seed=123)
def _():
    linear, parameters = SelfAttentionV2(3, 2), SelfAttentionV1(3, 2)
    parameters.load_state_dict(
        {name.removesuffix(".weight"): weight.T for name, weight in linear.state_dict().items()}
    )
    return parameters(C)


for name in ("W_query", "W_key", "W_value"):
    reproduces(f"C.{name}", seed=246)(lambda name=name: getattr(SelfAttentionV1(3, 2), name))


def step(name: str) -> Tensor:
    """Return the value of a step of `SelfAttentionV1` on input C, by its name in a recording."""
    return record(SelfAttentionV1(3, 2), C)[name].value


for figure_id, read in {
    "C.query.token1": lambda: step("queries")[1],
    "C.key.token1": lambda: step("keys")[1],
    "C.value.token1": lambda: step("values")[1],
    "C.keys": lambda: step("keys"),
    "C.values": lambda: step("values"),
    "C.score.token1.key1": lambda: step("scores")[1, 1],
    "C.projected_scores.query1": lambda: step("scores")[1],
    "C.projected_weights.query1": lambda: step("weights")[1],
    "C.projected_context.query1": lambda: step("context")[1],
}.items():
    reproduces(figure_id, seed=246)(read)


# --- causal attention --------------------------------------------------------------------------------


@reproduces("A.causal.weights_from_printed_scores")
def _():
    scores = given("A.causal.weights_from_printed_scores")
    # Future scores are so large that a leak would be visible.
    unmasked = scores.masked_fill(scores.isinf(), 9.0)
    return causal.weights_by_minus_infinity(unmasked / math.sqrt(2))


def renormalising(name: str) -> Tensor:
    """Return a step of `weights_by_renormalising` for the scaled scores of `SelfAttentionV2`, by its name."""
    scaled_scores = record(SelfAttentionV2(3, 2), C)["scaled_scores"].value
    return record(causal.weights_by_renormalising, scaled_scores)[name].value


for figure_id, read in {
    "C.causal.weights_before_mask": lambda: renormalising("full_weights"),
    "C.causal.multiplied": lambda: renormalising("kept_weights"),
    "C.causal.renormalised": lambda: renormalising("weights"),
}.items():
    reproduces(figure_id, seed=123)(read)


@reproduces("C.causal.masked_scores", seed=123)
def _():
    attention = CausalAttention(3, 2, context_length=6)
    return record(attention, C)["masked_scores"].value * math.sqrt(2)  # printed before scaling


@reproduces("C.causal.weights", seed=123)
def _():
    return record(CausalAttention(3, 2, context_length=6), C)["weights"].value


@reproduces("C.causal.dropout", seed=123)
def _():
    attention = CausalAttention(3, 2, context_length=6, dropout=0.5)
    torch.manual_seed(123)
    return record(attention, C)["dropped_weights"].value


@reproduces("C.causal_attention.batch", seed=123)
def _():
    return CausalAttention(3, 2, context_length=6, dropout=0.2)(BATCH)


# --- multi-head attention ----------------------------------------------------------------------------


@reproduces("C.multi_head.wrapper", seed=123)
def _():
    return MultiHeadAttentionWrapper(3, 2, context_length=6, dropout=0.2, num_heads=3)(BATCH)


@reproduces("C.multi_head.split", seed=123)
def _():
    return MultiHeadAttention(3, 6, context_length=6, dropout=0.2, num_heads=3)(BATCH)
