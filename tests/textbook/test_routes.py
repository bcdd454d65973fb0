"""Tests that all implementations of a mechanism have equal outputs and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from printed import INPUTS
from torch import Tensor, nn

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

PROJECTIONS = ("W_query", "W_key", "W_value")
sizes = st.integers(1, 5)
seeds = st.integers(0, 2**32)


def assert_equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def draw(seed: int, *shape: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def assert_equal_with_gradients(one, other, x: Tensor):
    """Check that two callables of x have equal outputs, and equal gradients of a random combination of these."""
    outputs = one(x), other(x)
    assert_equal(*outputs)
    upstream = torch.randn_like(outputs[0])
    for module in (one, other):
        if isinstance(module, nn.Module):
            module.zero_grad()
    gradients = [torch.autograd.grad(output, x, upstream, retain_graph=True) for output in outputs]
    assert_equal(*gradients)
    for output in outputs:
        output.backward(upstream)


# --- simplified attention ----------------------------------------------------------------------------


@settings(max_examples=30)
@given(seed=seeds, T=sizes, d=sizes)
def test_loops_equal_matrix_products(seed, T, d):
    tokens = draw(seed, T, d)
    assert_equal(simplified.scores_by_loops(tokens), simplified.scores_by_matmul(tokens))
    weights = simplified.weights_by_stable_softmax(tokens @ tokens.mT)
    assert_equal(
        simplified.context_by_loops(weights, tokens), simplified.context_by_matmul(weights, tokens)
    )
    assert_equal_with_gradients(simplified.attend_by_loops, simplified.attend, tokens)
    assert_equal(simplified.attend_one(tokens, T - 1), simplified.attend(tokens)[T - 1])


@pytest.mark.parametrize("name", INPUTS)
def test_loops_equal_matrix_products_on_the_documents_inputs(name):
    tokens = INPUTS[name].double()
    assert_equal(simplified.attend_by_loops(tokens), simplified.attend(tokens))


@settings(max_examples=30)
@given(seed=seeds, T=sizes)
def test_all_softmaxes_are_equal(seed, T):
    scores = draw(seed, T, T)
    assert_equal_with_gradients(
        simplified.weights_by_naive_softmax, simplified.weights_by_stable_softmax, scores
    )
    assert_equal(simplified.weights_by_stable_softmax(scores), torch.softmax(scores, dim=-1))


@pytest.mark.parametrize(
    "weigh",
    [
        simplified.weights_by_sum,
        simplified.weights_by_naive_softmax,
        simplified.weights_by_stable_softmax,
    ],
)
def test_rows_sum_to_one_with_every_normalization(weigh):
    weights = weigh(simplified.scores_by_matmul(INPUTS["D"].double()))
    assert_equal(weights.sum(dim=-1), torch.ones(6, dtype=torch.float64))


def test_division_by_the_sum_allows_negative_weights_and_softmax_does_not():
    scores = torch.tensor([2.0, -1.0])
    assert simplified.weights_by_sum(scores).tolist() == [2.0, -1.0]
    assert (simplified.weights_by_stable_softmax(scores) > 0).all()


# --- self-attention ----------------------------------------------------------------------------------


@settings(max_examples=30)
@given(seed=seeds, B=sizes, T=sizes, d_in=sizes, d_out=sizes)
def test_parameters_equal_linear(seed, B, T, d_in, d_out):
    x = draw(seed, B, T, d_in)
    parameters = SelfAttentionV1(d_in, d_out).double()
    linear = SelfAttentionV2(d_in, d_out).double()
    with torch.no_grad():
        for name in PROJECTIONS:
            getattr(parameters, name).copy_(getattr(linear, name).weight.T)
    assert_equal_with_gradients(parameters, linear, x)
    for name in PROJECTIONS:
        assert_equal(getattr(parameters, name).grad, getattr(linear, name).weight.grad.T)


def test_self_attention_with_identity_projections_is_simplified_attention():
    tokens = INPUTS["D"].double()
    attention = SelfAttentionV1(3, 3).double()
    with torch.no_grad():
        for name in PROJECTIONS:
            getattr(attention, name).copy_(torch.eye(3))
        # Simplified attention has no scale; this compensates for it.
        attention.W_query.mul_(math.sqrt(3))
    assert_equal(attention(tokens), simplified.attend(tokens))


# --- causal attention --------------------------------------------------------------------------------


@settings(max_examples=30)
@given(seed=seeds, B=sizes, T=sizes)
def test_renormalising_equals_minus_infinity(seed, B, T):
    scores = draw(seed, B, T, T)
    assert_equal_with_gradients(
        causal.weights_by_renormalising, causal.weights_by_minus_infinity, scores
    )


def test_renormalising_fails_if_future_scores_dominate_and_minus_infinity_does_not():
    scores = torch.tensor([[0.0, 1000.0], [0.0, 0.0]])
    expected = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert causal.weights_by_renormalising(scores)[0].isnan().all()
    torch.testing.assert_close(causal.weights_by_minus_infinity(scores), expected)


@settings(max_examples=30)
@given(seed=seeds, B=sizes, T=sizes, d_in=sizes, d_out=sizes, qkv_bias=st.booleans())
def test_the_module_equals_the_functions(seed, B, T, d_in, d_out, qkv_bias):
    x = draw(seed, B, T, d_in)
    module = CausalAttention(d_in, d_out, context_length=T, qkv_bias=qkv_bias).double()

    def by_functions(x):
        queries, keys, values = (getattr(module, name)(x) for name in PROJECTIONS)
        scaled_scores = queries @ keys.mT / math.sqrt(d_out)
        return causal.weights_by_renormalising(scaled_scores) @ values

    assert_equal_with_gradients(module, by_functions, x)


def test_causal_attention_is_self_attention_for_the_last_token():
    tokens = INPUTS["D"].double()
    self_attention = SelfAttentionV2(3, 2).double()
    causal_attention = CausalAttention(3, 2, context_length=6).double()
    causal_attention.load_state_dict(self_attention.state_dict())
    assert_equal(causal_attention(tokens)[-1], self_attention(tokens)[-1])


# --- multi-head attention ----------------------------------------------------------------------------


@settings(max_examples=30)
@given(seed=seeds, B=sizes, T=sizes, d_in=sizes, D=sizes, H=sizes, qkv_bias=st.booleans())
def test_all_multi_head_modules_are_equal(seed, B, T, d_in, D, H, qkv_bias):
    x = draw(seed, B, T, d_in)
    options = {"context_length": T, "num_heads": H, "qkv_bias": qkv_bias}
    one_by_one = MultiHeadAttentionWrapper(d_in, D, **options).double()
    at_once = MultiHeadAttention(d_in, H * D, **options).double()
    by_einsum = EinsumMultiHeadAttention(d_in, H * D, **options).double()

    def side_by_side(attribute: str) -> dict[str, Tensor]:
        return {
            f"{name}.{kind}": torch.cat(
                [
                    getattr(getattr(getattr(head, name), kind), attribute)
                    for head in one_by_one.heads
                ]
            )
            for name in PROJECTIONS
            for kind in (("weight", "bias") if qkv_bias else ("weight",))
        }

    by_einsum.load_state_dict(side_by_side("data"))
    unprojected = {
        "out_proj.weight": torch.eye(H * D, dtype=torch.float64),
        "out_proj.bias": torch.zeros(H * D, dtype=torch.float64),
    }
    at_once.load_state_dict(side_by_side("data") | unprojected)

    for module in (at_once, by_einsum):
        assert_equal_with_gradients(one_by_one, module, x)
        for name, gradient in side_by_side("grad").items():
            assert_equal(module.get_parameter(name).grad, gradient)


@settings(max_examples=30)
@given(seed=seeds, T=sizes, H=sizes, K=sizes, V=sizes)
def test_einsum_with_values_of_another_size_is_a_loop_over_heads(seed, T, H, K, V):
    x = draw(seed, 2, T, 3)
    attention = EinsumMultiHeadAttention(
        3, H * V, context_length=T, num_heads=H, key_dim=K
    ).double()

    def by_loop(x):
        contexts = []
        for h in range(H):
            queries = x @ attention.W_query.weight[h * K : (h + 1) * K].T
            keys = x @ attention.W_key.weight[h * K : (h + 1) * K].T
            values = x @ attention.W_value.weight[h * V : (h + 1) * V].T
            weights = causal.weights_by_minus_infinity(queries @ keys.mT / math.sqrt(K))
            contexts.append(weights @ values)
        return torch.cat(contexts, dim=-1)

    assert_equal_with_gradients(attention, by_loop, x)


def test_one_head_is_causal_attention():
    x = draw(0, 2, 6, 3)
    single = CausalAttention(3, 4, context_length=6).double()
    wrapped = MultiHeadAttentionWrapper(3, 4, context_length=6, num_heads=1).double()
    by_einsum = EinsumMultiHeadAttention(3, 4, context_length=6, num_heads=1).double()
    wrapped.heads[0].load_state_dict(single.state_dict())
    by_einsum.load_state_dict(single.state_dict())
    assert_equal_with_gradients(single, wrapped, x)
    assert_equal_with_gradients(single, by_einsum, x)
