"""Conventional names: none has two meanings where only the name decides."""

from collections import Counter

from heedful.conformance.calling import names
from heedful.conformance.calling.conventional import (
    EPSILON,
    VALUES,
    conventional_values,
    value_by_name,
)


def test_no_argument_of_a_constructor_has_two_values():
    counts = Counter(name for role in VALUES for name in role)
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_word_stands_for_a_conventional_name():
    conventional = {name for role in VALUES for name in role}
    assert set(names.WORDS.values()) <= conventional


def test_small_numbers_are_told_by_whole_words():
    values = conventional_values({})
    assert value_by_name("layer_norm_eps", values) == value_by_name("epsilon", values) == EPSILON
    assert value_by_name("num_of_timesteps", values) == values["context_length"]
    assert value_by_name("repsize", values) is None
