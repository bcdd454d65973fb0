"""TrainingConfig: its changes, its presets, and the values that it refuses."""

import dataclasses
import inspect
import math
import re

import pytest

from heedful.errors import ArgumentError
from heedful.gpt import GPT, GPTConfig
from heedful.gpt.train.config import LARGE, SMALL, TrainingConfig, preset


def test_a_budget_replaces_another():
    assert LARGE.changed({"tokens": 5}).tokens == 5
    assert LARGE.changed({"tokens": 5}).minutes is None
    with pytest.raises(ArgumentError, match="steps and minutes"):
        LARGE.changed({"steps": 5, "minutes": 2})


def test_changes_of_the_model_are_added():
    changed = LARGE.changed({"model": {"num_layers": 2}})
    assert changed.model == LARGE.model | {"num_layers": 2}
    assert LARGE.model["num_layers"] != 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"learning_rat": 1e-3}, "'learning_rate'"),
        ({"wholly_unknown_key_of_mine": 1}, "No key resembles it"),
        ({"learning_rate": "fast"}, "str 'fast'"),
        ({"batch_size": 2.5}, "float 2.5"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 10**9}, "at most 65,536"),
        ({"vocab_size": 10**9}, "at most 1,048,576"),
        ({"learning_rate": math.inf}, "finite"),
        ({"minutes": math.inf}, "at most 1,000"),
        ({"beta2": 1.0}, "below 1"),
        ({"precision": "float8"}, "bfloat16"),
        ({"minutes": -1.0}, "above 0"),
    ],
)
def test_invalid_values_are_refused(changes, text):
    with pytest.raises(ArgumentError, match=text):
        LARGE.changed(changes)


def test_every_value_has_a_reason_beside_it():
    lines = inspect.getsource(TrainingConfig).splitlines()
    fields = [line for line in lines if re.match(r"    \w+: .+ = ", line)]
    assert len(fields) == len(dataclasses.fields(TrainingConfig))
    assert all("  # " in line for line in fields)


def test_the_preset_follows_the_size():
    assert preset(95_000) is SMALL
    assert preset(5_600_000) is LARGE
    shape = GPTConfig.llama(vocab_size=LARGE.vocab_size, **LARGE.model)
    parameters = sum(parameter.numel() for parameter in GPT(shape).parameters())
    assert 9.5e6 < parameters < 11e6
    assert shape.context_length == 512
