"""Errors can be pickled, so that they reach other processes."""

import pickle

import pytest

from heedful.errors import ArgumentError, HeedfulError, KernelError, MissingExtraError


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError("query", expected="4 dimensions", received="3", remedy="Add one."),
        MissingExtraError("heedful train", "train"),
        KernelError("none can run it"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_pickled(error: HeedfulError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
