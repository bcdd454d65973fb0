"""Dropout is reproducible, the same in all our kernels, has the right rate, and shows no pattern."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful import Causal, attention
from heedful.dropout import kept, seed_of_rows
from heedful.sharded import rows_from


def indices(B: int, H: int, Tq: int, Tk: int) -> list[torch.Tensor]:
    return list(torch.meshgrid(*(torch.arange(n) for n in (B, H, Tq, Tk)), indexing="ij"))


def dropped_weights(p: float, kernel: str, T: int = 40, **options) -> torch.Tensor:
    """Return the weights after dropout, by attention to values that are the identity."""
    query = torch.randn(2, 3, T, 8, generator=torch.Generator().manual_seed(1))
    value = torch.eye(T).expand(2, 3, T, T)
    return attention(query, query, value, dropout_p=p, kernel=kernel, **options)


def test_one_seed_drops_the_same_weights_in_all_our_kernels():
    weights = {}
    for kernel in ("reference", "online"):
        torch.manual_seed(3)
        weights[kernel] = dropped_weights(0.4, kernel, T=300, mask=Causal())
    assert torch.equal(weights["reference"] == 0, weights["online"] == 0)
    torch.testing.assert_close(weights["reference"], weights["online"])


def test_torchs_generator_determines_the_dropped_weights():
    torch.manual_seed(3)
    first, second = (dropped_weights(0.4, "reference") for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(dropped_weights(0.4, "reference"), first)
    assert not torch.equal(second == 0, first == 0)


@pytest.mark.parametrize("kernel", ["reference", "online", "native"])
def test_ranks_drop_in_their_rows_what_one_process_drops_there(kernel):
    x = torch.randn(5, 3, 40, 8)
    value = torch.eye(40).expand(5, 3, 40, 40)
    torch.manual_seed(3)
    whole = attention(x, x, value, dropout_p=0.4, kernel=kernel)
    for rows in (slice(0, 2), slice(2, 5), slice(4, 5)):
        torch.manual_seed(3)
        with rows_from(rows.start):
            part = attention(x[rows], x[rows], value[rows], dropout_p=0.4, kernel=kernel)
        torch.testing.assert_close(part, whole[rows])


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_a_seed_of_rows_begins_with_the_draws_of_later_rows(seed, first):
    b, h, q, k = indices(2, 2, 3, 4)
    moved = seed_of_rows(torch.tensor(seed), first)
    assert torch.equal(kept(moved, 0.5, b, h, q, k), kept(seed, 0.5, b + first, h, q, k))


def test_without_dropout_no_random_number_is_drawn():
    state = torch.get_rng_state()
    dropped_weights(0.0, "reference")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kernel", ["reference", "online", "torch_sdpa"])
def test_kept_weights_are_scaled_to_preserve_the_mean(kernel):
    full, dropped = dropped_weights(0.0, kernel), dropped_weights(0.25, kernel)
    survivors = dropped != 0
    torch.testing.assert_close(dropped[survivors], full[survivors] / 0.75)
    assert 0.7 < survivors.float().mean() < 0.8


def test_gradients_pass_only_through_kept_weights():
    query, value = torch.randn(1, 1, 30, 8), torch.randn(1, 1, 30, 4, requires_grad=True)
    torch.manual_seed(0)
    output = attention(query, query, value, dropout_p=0.5, kernel="reference")
    torch.manual_seed(0)
    weights = attention(query, query, torch.eye(30)[None, None], dropout_p=0.5, kernel="reference")
    output.sum().backward()
    torch.testing.assert_close(value.grad[0, 0, :, 0], weights[0, 0].sum(0))


@given(st.integers(0, 2**64 - 1), st.sampled_from([0.01, 0.1, 0.5, 0.9]))
def test_the_rate_is_right_for_every_seed(seed, p):
    dropped = ~kept(seed, p, *indices(2, 2, 64, 256))
    count, n = int(dropped.sum()), dropped.numel()
    assert abs(count - n * p) < 5 * (n * p * (1 - p)) ** 0.5


def test_no_pattern_between_neighbours():
    """Correlations of the draws along and across every index, also shifted, are as small as for random numbers."""
    draws = kept(7, 0.5, *indices(4, 4, 128, 256)).float() * 2 - 1
    limit = 5 / draws.numel() ** 0.5
    for dimension in range(4):
        for shift in (1, 2, 3):
            if shift < draws.shape[dimension]:
                assert abs((draws * draws.roll(shift, dimension)).mean()) < limit
    for rows, keys in ((1, 1), (1, -1), (2, 1)):
        assert abs((draws * draws.roll((rows, keys), (2, 3))).mean()) < limit
    assert abs((draws * draws.transpose(2, 3).flatten(2).view_as(draws)).mean()) < limit


def test_seeds_differ_in_every_bit():
    base = kept(0, 0.5, *indices(1, 1, 64, 256))
    for bit in range(64):
        agreement = (kept(1 << bit, 0.5, *indices(1, 1, 64, 256)) == base).float().mean()
        assert 0.45 < agreement < 0.55


def test_draws_of_a_known_seed_do_not_change():
    """The generator is part of the interface, because other kernels and machines must draw the same."""
    draws = kept(0x0123456789ABCDEF, 0.5, *indices(1, 1, 2, 16)).int().flatten().tolist()
    assert "".join(map(str, draws)) == "11011110110000110110101000110101"
