"""Exceptions in ordinary calls."""

from edited_attention import DROPOUT, assert_bug


def test_an_exception_in_training_is_found(tmp_path):
    halved = "        if self.training:\n            weights = weights.half_of\n"
    assert_bug(tmp_path, "crashes", DROPOUT, DROPOUT + halved, "half_of")
