"""Errors can be pickled, so that they reach other processes."""

import pickle

import pytest

from heedful.errors import ArgumentError, HeedfulError, KernelError, MissingExtraError, RankError


@pytest.mark.parametrize("expected", ["a number", "a multiple of num_heads=" + "1" * 4000])
def test_what_a_file_may_contain_is_shortened_in_the_middle(expected):
    received = "the value " + "very " * 50_000 + "long (config.json)"
    message = str(
        ArgumentError("d_model", expected=expected, received=received, remedy="Pass one.")
    )
    assert len(message) < 2200
    assert message.startswith(f"d_model: expected {expected[:20]}")
    assert "; received the value very" in message
    assert message.endswith("long (config.json). Pass one.")


def test_control_characters_count_as_a_terminal_shows_them():
    error = ArgumentError("input", expected="a tensor", received="\0" * 900, remedy="Save one.")
    assert len(str(error)) < 1200
    assert str(error).isprintable()


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError("query", expected="4 dimensions", received="3", remedy="Add one."),
        MissingExtraError("heedful train", "train"),
        ArgumentError("query", expected="a few", received="many " * 500, remedy="Remove some."),
        KernelError("none can run it"),
        RankError(2, "it has ended"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_pickled(error: HeedfulError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
