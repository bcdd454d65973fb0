"""The bigram model: a probability distribution, equal to hand calculations, and better than simpler models."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from heedful.errors import ArgumentError
from heedful.gpt.data.books import sonnets
from heedful.gpt.train.bigram import Bigram, _discount


def table(model: Bigram, V: int) -> np.ndarray:
    """Return every p(w | v): (V, V)."""
    return model.probability(np.arange(V)[:, None], np.arange(V))


@given(tokens=st.lists(st.integers(0, 5), min_size=2, max_size=60))
@example(tokens=[*range(30)] * 3)  # many threes and no twos make the discount of 2 negative
@example(tokens=[*range(30)] * 4)
def test_probabilities_sum_to_one_after_every_token_and_none_is_zero(tokens):
    V = max(tokens) + 2
    p = table(Bigram(np.array(tokens, np.uint16), V), V)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
    assert (p > 0).all()


def test_probabilities_equal_those_calculated_by_hand():
    """The text is 0 1 0 1 0 2, with ids up to 3.

    Pairs: 01 twice, 10 twice, 02 once. So n1, n2, n3 = 1, 2, 0; each increased by one: 2, 3, 1. Y = 2/8,
    D(1) = 1 − 2·¼·3/2 = ¼, D(2) = 2 − 3·¼·⅓ = 7/4. After 0, ¼ of 01 and ¾ of 02 remain, and 2 of 3 are discounted.
    Predecessors: 0, 1 and 2 have one each. So n1, n2 = 4, 1, Y = 4/6, D(1) = ⅔. Of each count ⅓ remains, and 2 of 3 are
    discounted, which is ½ for each of the four ids: p(0) = p(1) = p(2) = (⅓ + ½)/3 = 5/18, p(3) = ½/3 = 1/6.
    """
    tokens = np.array([0, 1, 0, 1, 0, 2])
    model = Bigram(tokens, 4)
    lower = np.array([5, 5, 5, 3]) / 18
    by_hand = [
        [20 / 108, 29 / 108, 47 / 108, 12 / 108],
        [53 / 144, 35 / 144, 35 / 144, 21 / 144],
        lower,  # nothing follows 2 or 3
        lower,
    ]
    np.testing.assert_allclose(table(model, 4), by_hand, rtol=1e-14)
    loss = -(2 * np.log(29 / 108) + 2 * np.log(53 / 144) + np.log(47 / 108)) / 5
    assert model.loss(tokens) == pytest.approx(loss, rel=1e-14)


def test_discounts_are_those_of_the_paper():
    """n1 … n4 = 9, 4, 2, 1, each increased by one: Y = 10/20, D = 1 − 5/10, 2 − 1.5 · 3/5, 3 − 2 · 2/3."""
    counts = np.repeat([1, 2, 3, 4, 7], [9, 4, 2, 1, 1])
    kept, taken = _discount(counts)
    np.testing.assert_allclose(taken, np.repeat([1 / 2, 11 / 10, 5 / 3], [9, 4, 4]), rtol=1e-14)
    np.testing.assert_allclose(kept + taken, counts)


def test_the_loss_is_below_those_of_simpler_models_on_real_text():
    V = 256
    train, validation = (
        np.frombuffer("".join(pieces).encode(), np.uint8)
        for pieces in (sonnets().training(), sonnets().validation())
    )
    before, after = validation[:-1], validation[1:]
    pairs = np.ones((V, V))
    np.add.at(pairs, (train[:-1], train[1:]), 1)
    add_one = -np.log(pairs / pairs.sum(1, keepdims=True))[before, after].mean()
    single = -np.log(pairs.sum(0) / pairs.sum())[after].mean()
    loss = Bigram(train, V).loss(validation)
    assert loss < add_one - 0.03
    assert loss < single - 0.5


def test_the_loss_of_noise_is_its_entropy_and_that_of_a_cycle_is_close_to_zero():
    noise = np.random.default_rng(0).integers(0, 32, 200_000)
    assert Bigram(noise[:150_000], 32).loss(noise[150_000:]) == pytest.approx(np.log(32), abs=0.01)
    cycle = np.tile(np.arange(10), 1000)
    assert Bigram(cycle, 10).loss(cycle) < 0.01


def test_tokens_of_two_bytes_do_not_overflow():
    V = 60_000
    tokens = np.random.default_rng(0).integers(V - 5, V, 1000)
    small = Bigram(tokens - (V - 5), 5)
    large = Bigram(tokens.astype(np.uint16), V)
    last = np.arange(V - 5, V, dtype=np.uint16)
    got = large.probability(last[:, None], last)
    # The tolerance is for V, which occurs in the uniform distribution.
    np.testing.assert_allclose(got, table(small, 5), rtol=0.03)


def test_a_single_token_is_refused():
    with pytest.raises(ArgumentError, match="at least two"):
        Bigram(np.array([1]), 4)
    with pytest.raises(ArgumentError, match="at least two"):
        Bigram(np.array([1, 2]), 4).loss(np.array([], np.int64))
