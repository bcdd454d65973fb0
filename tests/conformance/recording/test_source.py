"""Source lines are found with the line numbers and the file that the user knows."""

import importlib.util
import sys

import pytest
import torch
from torch import nn

from heedful.conformance.recording.assignments import last_return
from heedful.conformance.recording.definitions import attribute_definition, attribute_mutation
from heedful.conformance.recording.source import SourceLine, parsed, parsed_file

SOURCE = '''import torch
from torch import nn


class Attention(nn.Module):
    """A docstring
of two lines."""

    def __init__(self):
        super().__init__()
        ones = torch.ones(4, 4)
        triangle = torch.triu(ones, diagonal=1)
        self.register_buffer("mask", triangle)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if x is None:
            return None
        return x
'''


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "attention.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def module(path, monkeypatch) -> nn.Module:
    """Return a module that holds an instance of the class in the source."""
    spec = importlib.util.spec_from_file_location("attention_of_test_source", path)
    imported = importlib.util.module_from_spec(spec)
    # inspect finds the file of a class by its module.
    monkeypatch.setitem(sys.modules, spec.name, imported)
    spec.loader.exec_module(imported)
    return nn.Sequential(imported.Attention())


def line(path: str, text: str) -> SourceLine:
    """Return the last line of the source that contains a text."""
    lines = enumerate(SOURCE.splitlines(), 1)
    return max(
        (SourceLine(path, number, line.strip()) for number, line in lines if text in line),
        key=lambda line: line.line,
    )


def test_statements_have_the_line_numbers_of_the_file(module, path):
    attention = module[0]
    for definition in (type(attention), attention.forward):
        source = parsed(definition)
        assert source is not None
        assert line(path, "self.calls += 1") in map(source.line_of, source.statements())


def test_what_has_no_source_is_not_parsed():
    assert parsed(torch.matmul) is None
    assert parsed(eval("lambda x: x")) is None
    source = parsed_file("no/such/file.py")
    assert source is not None
    assert list(source.statements()) == []


def test_the_last_return_of_a_function(module, path):
    assert last_return(module[0].forward) == line(path, "return x")
    assert last_return(torch.matmul) is None


def test_a_mutation_outside_the_constructor(module, path):
    assert attribute_mutation(module[0], "calls") == line(path, "self.calls += 1")
    assert attribute_mutation(module[0], "mask") is None


def test_the_definition_of_an_attribute(module, path):
    registration = SourceLine(path, 13, "self.register_buffer('mask', triangle)")
    assert attribute_definition(module, "0.mask", follow_locals=False) == registration
    assert attribute_definition(module, "0.mask") == line(path, "triangle = ")
    assert attribute_definition(module, "0.training") is None
    assert attribute_definition(module, "1.mask") is None
    assert attribute_definition(None, "mask") is None


def test_surrounding_lines(path):
    last = len(SOURCE.splitlines())
    assert SourceLine.at(path, 1).surrounding(1) == [
        (1, "import torch"),
        (2, "from torch import nn"),
    ]
    assert [number for number, _ in SourceLine.at(path, last).surrounding(2)] == [
        last - 2,
        last - 1,
        last,
    ]
    assert SourceLine("<cell>", 3, "return x").surrounding(2) == [(3, "return x")]
    assert SourceLine.at(path, last).source == "return x"
