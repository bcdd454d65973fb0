"""Tests of `RotaryEmbedding`."""

import copy

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.nn import RotaryEmbedding
from nn.plain import rotate

LAYOUTS = ("half", "interleaved")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rotation_matches_roformers_formula(layout, base, dtype):
    x = torch.randn(2, 3, 5, 8).to(dtype)
    positions = torch.tensor([[0, 1, 2, 7, 500], [9, 3, 3, 0, 100_000]])
    rotated = RotaryEmbedding(8, base=base, layout=layout)(x, positions)
    expected = rotate(x.double(), positions, base=base, layout=layout)
    assert rotated.dtype == dtype
    torch.testing.assert_close(rotated, expected.to(dtype))


def test_layout_half_matches_transformers_llama():
    llama = pytest.importorskip(
        "transformers.models.llama.modeling_llama",
        reason="transformers is missing; install it with: pip install -e '.[models]'",
    )
    config = llama.LlamaConfig(hidden_size=64, num_attention_heads=4)
    query, key = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    positions = torch.arange(3, 12)
    cos, sin = llama.LlamaRotaryEmbedding(config)(query, positions[None])
    expected = llama.apply_rotary_pos_emb(query, key, cos, sin)
    rotary = RotaryEmbedding(16, base=config.rope_parameters["rope_theta"])
    for x, theirs in zip((query, key), expected, strict=True):
        torch.testing.assert_close(rotary(x, positions), theirs)


def test_the_layouts_differ_by_the_order_of_features():
    """A checkpoint of one layout becomes one of the other if the rows of W_query and W_key are permuted."""
    x, positions = torch.randn(1, 2, 6, 8), torch.arange(6)
    order = torch.arange(8).view(2, 4).T.flatten()  # 0 4 1 5 2 6 3 7: pairs side by side
    half = RotaryEmbedding(8, layout="half")(x, positions)
    interleaved = RotaryEmbedding(8, layout="interleaved")(x[..., order], positions)
    torch.testing.assert_close(half[..., order], interleaved)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shift", [1, 77, 1_000_000])
def test_scores_depend_only_on_distances(layout, shift):
    """This also holds after a million tokens, where angles in float32 would have errors of hundredths."""
    rotary = RotaryEmbedding(16, layout=layout)
    query, key, positions = torch.randn(1, 2, 7, 16), torch.randn(1, 2, 7, 16), torch.arange(7)

    def scores(positions):
        return rotary(query, positions) @ rotary(key, positions).mT

    torch.testing.assert_close(scores(positions), scores(positions + shift), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(scores(positions), query @ key.mT, atol=0.1)


def test_batch_entries_may_have_different_positions():
    rotary, x = RotaryEmbedding(8), torch.randn(2, 3, 4, 8)
    positions = torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8]])
    both = rotary(x, positions)
    for b in range(2):
        torch.testing.assert_close(both[b : b + 1], rotary(x[b : b + 1], positions[b]))


def test_cached_angles_match_the_positions():
    """One module may serve many layers, with changing values, dtypes and shapes, and positions changed in place."""
    rotary, x, positions = RotaryEmbedding(8), torch.randn(1, 2, 4, 8), torch.arange(4)
    before = rotary(x, positions)
    positions += 3
    assert torch.equal(rotary(x, positions), RotaryEmbedding(8)(x, positions))
    assert torch.equal(rotary(x, positions[None]), rotary(x, positions))
    assert rotary(x.double(), positions).dtype == torch.float64
    torch.testing.assert_close(
        rotary(x.double(), positions), rotate(x.double(), positions, base=1e4, layout="half")
    )
    assert torch.equal(rotary(x, positions - 3), before)


def test_angles_cached_in_inference_mode_can_be_used_in_training():
    rotary, positions = RotaryEmbedding(8), torch.arange(4)
    with torch.inference_mode():
        rotary(torch.randn(1, 2, 4, 8), positions)
    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    rotary(x, positions).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())  # because a rotation preserves lengths


def test_the_module_has_no_parameters_and_no_state():
    rotary, positions = RotaryEmbedding(64), torch.tensor([100_000])
    assert not list(rotary.parameters())
    assert not rotary.state_dict()
    x = torch.randn(1, 1, 1, 64)
    assert torch.equal(copy.deepcopy(rotary).bfloat16()(x, positions), rotary(x, positions))


def test_the_input_is_not_changed():
    rotary, x = RotaryEmbedding(8), torch.randn(1, 2, 4, 8)
    before = x.clone()
    rotary(x, torch.arange(4))
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"head_dim": 7}, "head_dim: expected an even number"),
        ({"head_dim": 0}, "head_dim: expected a whole number of at least 1"),
        ({"head_dim": 8, "base": 0.0}, "base: expected a positive number"),
        ({"head_dim": 8, "layout": "neox"}, 'layout: expected "half" or "interleaved"'),
    ],
)
def test_invalid_settings_are_refused(arguments, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        RotaryEmbedding(**arguments)


@pytest.mark.parametrize(
    ("x", "positions", "complaint"),
    [
        (torch.randn(1, 2, 4, 6), torch.arange(4), r"x: expected floating point \(B, H, T, 8\)"),
        (torch.randn(2, 4, 8), torch.arange(4), "x: expected"),
        (torch.ones(1, 2, 4, 8).int(), torch.arange(4), "x: expected floating point"),
        (torch.randn(1, 2, 4, 8), torch.arange(5), r"positions: expected int64 \(4,\)"),
        (torch.randn(2, 2, 4, 8), torch.ones(3, 4).long(), "positions: expected"),
        (torch.randn(1, 2, 4, 8), torch.arange(4.0), "received torch.float32"),
    ],
)
def test_invalid_calls_are_refused(x, positions, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        RotaryEmbedding(8)(x, positions)
