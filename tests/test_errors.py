"""Errors reach whoever started the process that raised them."""

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
def test_an_error_survives_the_way_between_processes(error: HeedfulError) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
