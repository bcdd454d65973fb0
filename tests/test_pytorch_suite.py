"""The comparison of PyTorch's own tests, `make test-pytorch`, on a small file in their style."""

import pytest

from heedful.kernels.native import library
from pytorch_suite import run

pytestmark = pytest.mark.skipif(library.missing is not None, reason="the native library is missing")

TESTS = """
import os
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing._internal.common_utils import TestCase

class TestAttention(TestCase):
    def test_the_same(self):
        query = torch.ones(1, 2, 3, 8)
        self.assertEqual(scaled_dot_product_attention(query, query, query), query)

    def test_that_knows_the_function(self):
        self.assertIs(scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)

    def test_that_fails(self):
        self.assertEqual(1, 2)

    def test_that_is_skipped(self):
        self.skipTest("no CUDA")
"""
CRASHING = """
    def test_the_worst_crashes(self):
        if scaled_dot_product_attention.__module__ == "heedful.functional":
            os.abort()
"""


def run_on(tests, folder, monkeypatch):
    (folder / "test").mkdir()
    (folder / "test" / "test_transformers.py").write_text(tests)
    monkeypatch.setattr("sys.argv", ["run", str(folder)])
    return run.main()


def test_differences_and_crashes_are_found_and_named(tmp_path, monkeypatch, capsys):
    assert run_on(TESTS + CRASHING, tmp_path, monkeypatch) == 1
    printed = capsys.readouterr().out
    name = "test_transformers.py::TestAttention::test_that"
    assert f"fails in plain PyTorch: {name}_fails" in printed
    assert f"{name}_knows_the_function: passed in plain PyTorch, failed with replace" in printed
    assert (
        f"{name.removesuffix('that')}the_worst_crashes: passed in plain PyTorch, crashed with replace"
        in printed
    )
    assert "with accelerate" not in printed


@pytest.mark.slow
def test_equal_outcomes_are_no_differences(tmp_path, monkeypatch, capsys):
    knowing = TESTS.index("    def test_that_knows")
    same = TESTS[:knowing] + TESTS[TESTS.index("    def test_that_fails") :]
    assert run_on(same, tmp_path, monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1:] == ["3", "1", "1", "1", "0"]


def test_a_folder_without_tests_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["run", str(tmp_path)])
    with pytest.raises(SystemExit):
        run.main()
    assert "expected a source tree of PyTorch" in capsys.readouterr().err
