"""Arguments that hold several values are found by what the code takes out of them, without an example."""

from __future__ import annotations

import re

import pytest
import torch

from conformance.calling import batches
from heedful import check
from heedful.conformance.calling.subject import find_subject
from heedful.errors import ArgumentError


@pytest.mark.parametrize(
    ("module", "tokens", "mask"),
    [
        (batches.DictBatch, ("batch['src']",), "batch['mask']"),
        (batches.OfDictIds, ("inputs['input_ids']",), "inputs['attention_mask']"),
        (batches.ListBatch, ("tensors[0]", "tensors[1]", "tensors[2]"), None),
        (batches.OfList, ("inputs[0]", "inputs[1]"), None),
        (batches.OfTuple, ("inputs[0]",), "inputs[1]"),
        (batches.OfBatch, ("batch.src",), "batch.src_mask"),
    ],
    ids=lambda it: it.__name__ if isinstance(it, type) else None,
)
def test_the_values_within_an_argument_are_found(module, tokens, mask):
    torch.manual_seed(0)
    subject = find_subject(module())
    assert subject.convention.names == tokens
    assert (subject.padding and subject.padding.name) == mask
    assert subject.run(subject.draw(3, 9)).shape[:2] == (3, 9)
    assert not check(module()).bugs


@pytest.mark.parametrize(
    ("module", "right", "wrong", "name"),
    [
        ("DictBatch", "s = s.masked_fill", "s.masked_fill", "mask-unused"),
        ("OfDictIds", "torch.softmax(s, -1)", "torch.softmax(s, 1)", "softmax-wrong-dim"),
        ("OfList", " / q.shape[-1] ** 0.5", "", "scale-missing"),
    ],
)
def test_the_bug_is_named(module, right, wrong, name, bugs_of):
    assert bugs_of(batches, module, right, wrong) == [name]


def test_the_command_that_is_proposed_holds_the_values():
    with pytest.raises(ArgumentError) as caught:
        find_subject(batches.OfStrangers())
    vector = r"torch\.randn\(\d, \d, \d+\)"
    expected = rf"--example '\{{\"src\": {vector}\}}, \({vector}, {vector}\), "
    assert re.search(expected, str(caught.value)), caught.value
