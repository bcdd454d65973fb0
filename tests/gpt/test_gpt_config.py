"""GPTConfig: derived sizes, families, and the values that it refuses."""

import pytest

from heedful.errors import ArgumentError
from heedful.gpt import GPTConfig


def test_missing_sizes_are_derived():
    config = GPTConfig(d_model=96, num_heads=6)
    assert (config.num_kv_heads, config.head_dim, config.d_mlp) == (6, 16, 384)


def test_swiglu_has_as_many_weights_as_other_activations():
    gated = GPTConfig(d_model=768, activation="swiglu")
    assert 3 * gated.d_mlp == 2 * GPTConfig(d_model=768).d_mlp


def test_heads_may_have_any_size():
    assert GPTConfig(d_model=100, num_heads=3, head_dim=32).head_dim == 32


def test_families():
    gpt2, llama = GPTConfig.gpt2(num_layers=2), GPTConfig.llama(num_layers=2, num_kv_heads=9)
    assert (gpt2.positions, gpt2.norm, gpt2.activation, gpt2.bias) == (
        "learned",
        "layer",
        "gelu_tanh",
        True,
    )
    assert (llama.positions, llama.norm, llama.activation, llama.bias) == (
        "rotary",
        "rms",
        "swiglu",
        False,
    )
    assert (gpt2.num_layers, llama.num_layers, llama.num_kv_heads) == (2, 2, 9)
    assert GPTConfig.llama().d_mlp == 1536  # SmolLM2-135M's


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vocab_size", {"vocab_size": 0}),
        ("num_heads", {"num_heads": 0}),
        ("num_layers", {"num_layers": 1.5}),
        ("window", {"window": 0}),
        ("d_model", {"d_model": 100, "num_heads": 3}),
        ("num_kv_heads", {"num_heads": 12, "num_kv_heads": 5}),
        ("head_dim", {"head_dim": 5, "positions": "rotary"}),
        ("positions", {"positions": "sinusoidal"}),
        ("norm", {"norm": "batch"}),
        ("activation", {"activation": "relu"}),
        ("dropout", {"dropout": 1.5}),
        ("dropout", {"dropout": "0.1"}),
        ("norm_eps", {"norm_eps": "small"}),
        ("rotary_base", {"rotary_base": 0.0}),
    ],
)
def test_an_invalid_field_is_named(name, changes):
    with pytest.raises(ArgumentError) as caught:
        GPTConfig(**changes)
    assert caught.value.argument == name


def test_a_base_beyond_torchs_integers_is_a_float():
    base = GPTConfig(positions="rotary", rotary_base=2**64).rotary_base
    assert (type(base), base) == (float, 2.0**64)
    with pytest.raises(ArgumentError, match="rotary_base: expected a finite number"):
        GPTConfig(rotary_base=10**400)
