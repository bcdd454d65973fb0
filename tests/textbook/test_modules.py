"""Tests of the textbook's modules: causality, dropout, state, devices, shapes, errors."""

import math

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.textbook import (
    CausalAttention,
    EinsumMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
    causal,
)

D_IN, D_OUT, LENGTH = 3, 4, 8


def build_causal(kind, **options):
    heads = {} if kind is CausalAttention else {"num_heads": 2}
    return kind(D_IN, D_OUT, **({"context_length": LENGTH} | heads | options))


CAUSAL = [
    CausalAttention,
    MultiHeadAttentionWrapper,
    MultiHeadAttention,
    EinsumMultiHeadAttention,
]
every_causal = pytest.mark.parametrize("kind", CAUSAL)
every_kind = pytest.mark.parametrize("kind", [SelfAttentionV1, SelfAttentionV2, *CAUSAL])


def build(kind):
    return build_causal(kind) if kind in CAUSAL else kind(D_IN, D_OUT)


# --- which tokens influence which -----------------------------------------------------------------------------


@every_causal
@pytest.mark.parametrize("changed", range(LENGTH))
def test_a_token_influences_only_itself_and_later_tokens_of_its_sequence(kind, changed):
    attention = build_causal(kind)
    x = torch.randn(2, LENGTH, D_IN)
    other = x.clone()
    other[0, changed] += 1
    before, after = attention(x), attention(other)
    assert torch.equal(before[0, :changed], after[0, :changed])
    assert (before[0, changed:] != after[0, changed:]).any(dim=-1).all()
    assert torch.equal(before[1], after[1])


@every_causal
def test_infinite_scores_of_the_future_do_not_leak(kind):
    attention = build_causal(kind)
    x = torch.randn(1, LENGTH, D_IN)
    loud = x.clone()
    loud[:, -1] *= 1e4
    assert torch.equal(attention(x)[:, :-1], attention(loud)[:, :-1])


@pytest.mark.parametrize("kind", [SelfAttentionV1, SelfAttentionV2])
def test_without_a_mask_every_token_influences_all(kind):
    attention = build(kind)
    x = torch.randn(LENGTH, D_IN)
    other = x.clone()
    other[-1] += 1
    assert (attention(x) != attention(other)).any(dim=-1).all()


@every_causal
def test_a_prefix_gives_the_same_output_as_the_whole_sequence(kind):
    attention = build_causal(kind)
    x = torch.randn(2, LENGTH, D_IN)
    for T in range(LENGTH + 1):
        torch.testing.assert_close(attention(x[:, :T]), attention(x)[:, :T])


def test_the_mask_is_true_for_kept_keys():
    assert causal.causal_mask(3).tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


# --- checks from the source documents --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_heads", "key_dim", "value_dim"), [(1, 16, 16), (1, 16, 5), (4, 8, 8)]
)
def test_the_first_token_gets_its_own_value_and_later_ones_do_not(num_heads, key_dim, value_dim):
    """Document 004: B, T, C = 4, 8, 32."""
    x = torch.rand(4, 8, 32)
    attention = EinsumMultiHeadAttention(
        32, num_heads * value_dim, context_length=8, num_heads=num_heads, key_dim=key_dim
    )
    values, context = attention.W_value(x), attention(x)
    torch.testing.assert_close(context[:, 0], values[:, 0])
    assert not torch.isclose(context[:, 1:], values[:, 1:]).all(dim=-1).any()


@pytest.mark.parametrize(("num_heads", "key_dim"), [(1, 16), (4, 8)])
def test_scores_are_divided_by_the_root_of_the_key_size(num_heads, key_dim):
    """Log-weights differ like the scores, divided by √key_dim. Document 004 omits this for several heads."""
    attention = EinsumMultiHeadAttention(
        32, 32, context_length=8, num_heads=num_heads, key_dim=key_dim
    ).double()
    x = torch.rand(8, 32, dtype=torch.float64)
    queries = attention.W_query(x).unflatten(-1, (num_heads, key_dim))
    keys = attention.W_key(x).unflatten(-1, (num_heads, key_dim))
    scores = torch.einsum("ihk,jhk->hij", queries, keys) / math.sqrt(key_dim)
    weights = causal.weights_by_minus_infinity(scores)
    values = attention.W_value(x).unflatten(-1, (num_heads, attention.value_dim))
    expected = torch.stack([weights[h] @ values[:, h] for h in range(num_heads)], dim=1)
    torch.testing.assert_close(attention(x), expected.flatten(1))


def test_widths_of_the_wrapper_and_of_the_split_module():
    """Document 000: for width 2, two heads and x (2, 6, 3), the outputs are (2, 6, 4) and (2, 6, 2)."""
    x = torch.rand(2, 6, 3)
    options = {"context_length": 6, "num_heads": 2}
    assert MultiHeadAttentionWrapper(3, 2, **options)(x).shape == (2, 6, 4)
    assert MultiHeadAttention(3, 2, **options)(x).shape == (2, 6, 2)
    assert EinsumMultiHeadAttention(3, 2, **options)(x).shape == (2, 6, 2)


@every_causal
def test_constant_values_are_returned_because_weights_sum_to_one(kind):
    attention = build_causal(kind, qkv_bias=True)
    for name, parameter in attention.named_parameters():
        if "W_value.weight" in name:
            torch.nn.init.zeros_(parameter)
    context = attention(torch.randn(LENGTH, D_IN))
    torch.testing.assert_close(context, context[:1].expand_as(context))


# --- dropout -----------------------------------------------------------------------------------------


@every_causal
def test_dropout_applies_only_in_training(kind):
    attention = build_causal(kind, dropout=0.5)
    without = build_causal(kind, dropout=0.0)
    without.load_state_dict(attention.state_dict())
    x = torch.randn(2, LENGTH, D_IN)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), without(x))


@every_causal
def test_dropout_of_1_gives_zeros(kind):
    attention = build_causal(kind, dropout=1.0)
    context = attention(torch.randn(2, LENGTH, D_IN))
    bias = attention.out_proj.bias if kind is MultiHeadAttention else torch.zeros(context.shape[-1])
    torch.testing.assert_close(context, bias.expand_as(context))


# --- state, devices, dtypes, shapes ------------------------------------------------------------------


@every_kind
def test_state_dict_round_trip(kind):
    one, other = build(kind), build(kind)
    x = torch.randn(2, LENGTH, D_IN)
    assert not torch.equal(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


@every_causal
def test_weights_can_be_loaded_with_another_context_length(kind):
    short, long = build_causal(kind), build_causal(kind, context_length=2 * LENGTH)
    assert not any("mask" in name for name in short.state_dict())
    long.load_state_dict(short.state_dict())
    x = torch.randn(2, LENGTH, D_IN)
    assert torch.equal(short(x), long(x))


@every_causal
def test_the_mask_moves_to_the_device_and_stays_boolean(kind):
    attention = build_causal(kind).to("meta")
    masks = [buffer for name, buffer in attention.named_buffers() if name.endswith("mask")]
    assert len(masks) == (2 if kind is MultiHeadAttentionWrapper else 1)
    assert all(mask.device.type == "meta" for mask in masks)
    assert attention(torch.empty(2, LENGTH, D_IN, device="meta")).device.type == "meta"
    attention = build_causal(kind).double()
    assert all(buffer.dtype is torch.bool for buffer in attention.buffers())


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_output_has_the_modules_dtype(kind, dtype):
    attention = build(kind).to(dtype)
    output = attention(torch.randn(2, LENGTH, D_IN, dtype=dtype))
    assert output.dtype is dtype
    assert output.isfinite().all()


@every_kind
def test_a_single_sequence_is_a_batch_of_one(kind):
    attention = build(kind)
    x = torch.randn(2, LENGTH, D_IN)
    torch.testing.assert_close(attention(x[0]), attention(x)[0])


@every_kind
def test_every_parameter_and_nothing_else_gets_a_gradient(kind):
    attention = build(kind)
    # The sum is weighted, because a plain one has no gradient for scores if all values are equal.
    output = attention(torch.randn(2, LENGTH, D_IN))
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    assert not any(buffer.requires_grad for buffer in attention.buffers())


@every_kind
def test_qkv_bias_adds_biases(kind):
    def biases(module):
        return sum(name.endswith("bias") for name, _ in module.named_parameters())

    own = 1 if kind is MultiHeadAttention else 0  # out_proj always has one
    assert biases(build(kind)) == own
    if kind is SelfAttentionV2:
        assert biases(kind(D_IN, D_OUT, qkv_bias=True)) == 3
    elif kind in CAUSAL:
        heads = 2 if kind is MultiHeadAttentionWrapper else 1
        assert biases(build_causal(kind, qkv_bias=True)) == own + 3 * heads


# --- errors ------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("shape", [(D_IN,), (1, 2, 3, D_IN), (2, LENGTH, D_IN + 1), ()], ids=str)
def test_input_of_another_rank_or_width_is_refused(kind, shape):
    with pytest.raises(ArgumentError, match=r"x: expected shape \(B, T, 3\)") as error:
        build(kind)(torch.zeros(shape))
    assert str(shape) in error.value.received
    assert "d_in" in error.value.remedy


@every_causal
@pytest.mark.parametrize("shape", [(LENGTH + 1, D_IN), (2, LENGTH + 1, D_IN)], ids=str)
def test_more_tokens_than_the_context_length_are_refused(kind, shape):
    with pytest.raises(ArgumentError, match="context_length=8 tokens; received 9 tokens"):
        build_causal(kind)(torch.zeros(shape))


@every_kind
@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
@pytest.mark.parametrize("argument", ["d_in", "d_out"])
def test_invalid_sizes_are_refused(kind, argument, size):
    options = {"d_in": D_IN, "d_out": D_OUT} | (
        {"context_length": LENGTH} if kind in CAUSAL else {}
    )
    if kind in CAUSAL and kind is not CausalAttention:
        options["num_heads"] = 1
    with pytest.raises(ArgumentError, match=f"{argument}: expected a whole number of at least 1"):
        kind(**options | {argument: size})


@every_causal
def test_an_invalid_context_length_is_refused(kind):
    with pytest.raises(ArgumentError, match="context_length: expected a whole number"):
        build_causal(kind, context_length=0)


@every_causal
@pytest.mark.parametrize("dropout", [-0.1, 1.1, math.nan])
def test_an_invalid_dropout_is_refused(kind, dropout):
    with pytest.raises(ArgumentError, match=r"dropout: expected a probability in \[0, 1\]"):
        build_causal(kind, dropout=dropout)


@pytest.mark.parametrize("kind", CAUSAL[1:])
def test_zero_heads_are_refused(kind):
    with pytest.raises(ArgumentError, match="num_heads: expected a whole number of at least 1"):
        build_causal(kind, num_heads=0)


@pytest.mark.parametrize("kind", [MultiHeadAttention, EinsumMultiHeadAttention])
def test_heads_that_do_not_divide_the_width_are_refused(kind):
    with pytest.raises(
        ArgumentError, match="d_out: expected a multiple of num_heads=3; received 4"
    ):
        build_causal(kind, num_heads=3)


def test_an_invalid_key_size_is_refused():
    with pytest.raises(ArgumentError, match="key_dim: expected a whole number"):
        build_causal(EinsumMultiHeadAttention, key_dim=0)
