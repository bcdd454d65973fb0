"""A target on the command line is a class, instance or function in a file or a module."""

import sys

import pytest
import torch

from heedful.conformance.calling.loading import loaded
from heedful.errors import ArgumentError

MODULE = """
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.W_key = nn.Linear(d_model, d_model)

    def forward(self, x):
        return (x @ self.W_key(x).mT).softmax(dim=-1) @ x


attention = Attention(8)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Create a working folder with a module in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(MODULE)
    return tmp_path


def test_a_target_is_a_class_an_instance_or_a_function_under_a_dotted_name(folder):
    (folder / "boxed.py").write_text("import plain\nclass Box:\n    content = plain.attention")
    with loaded("plain.py:Attention") as target:
        assert target.__name__ == "Attention"
    with loaded("plain.py:attention") as target:
        assert target(torch.rand(1, 2, 8)).shape == (1, 2, 8)
    with loaded("boxed.py:Box.content") as target:
        assert target.W_key.in_features == 8
    with loaded("heedful.textbook:CausalAttention") as target:
        assert target.__module__ == "heedful.textbook.causal"


def test_a_file_of_a_package_may_import_its_neighbours(folder):
    (folder / "pack" / "deep").mkdir(parents=True)
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "deep" / "__init__.py").write_text("")
    (folder / "pack" / "sizes.py").write_text("SIZE = 8")
    (folder / "pack" / "deep" / "mine.py").write_text("from ..sizes import SIZE\n" + MODULE)
    with loaded("pack/deep/mine.py:Attention") as target:
        assert target.__module__ == "pack.deep.mine"


def test_the_search_path_is_restored():
    before = list(sys.path)
    with loaded("plain.py"):
        assert sys.path != before
    assert sys.path == before


def test_a_file_hides_no_module_of_its_name(folder):
    (folder / "torch.py").write_text("X = 1\ndef attend(query, key, value): return value")
    with loaded("torch.py:attend") as target:
        assert target(1, 2, 3) == 3
    assert sys.modules["torch"] is torch


def test_a_missing_name_raises_an_argument_error():
    with pytest.raises(ArgumentError, match=r"plain\.py:nothing"), loaded("plain.py:nothing"):
        pass
