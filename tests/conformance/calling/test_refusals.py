"""Modules are called with what their exceptions and code tell, and their bugs are named."""

from __future__ import annotations

import pytest
import torch

from conformance.calling import refusals
from heedful.conformance import check
from heedful.conformance.calling.subject import find_subject

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("target", "arguments", "bug"),
    [
        (refusals.OnOneAxis, {"over": 1}, "softmax-wrong-dim"),
        (refusals.OfFrames, {"over": -2}, "softmax-wrong-dim"),
        (refusals.Linked, {"factor": 2.0}, "scale-wrong"),
        (refusals.OfFixedWidth, {"hides": torch.tril}, "mask-inverted"),
        (refusals.OfFullSessions, {"flip": True}, "mask-inverted"),
        (refusals.OfItemsFirst, {"over": 1}, "softmax-wrong-dim"),
        (refusals.OfBags, {"over": 1}, "softmax-wrong-dim"),
    ],
)
def test_a_module_that_refuses_the_first_calls_is_called_and_its_bug_is_named(
    target, arguments, bug
):
    assert check(target).bugs == ()
    assert check(target, arguments=arguments).bugs[0].name == bug


def test_flags_that_exclude_each_other_are_turned_off_one_at_a_time():
    module = find_subject(refusals.OnOneAxis).module
    assert [module.along_rows, module.along_columns] == [False, True]  # pyright: ignore
    given = find_subject(refusals.OnOneAxis, arguments={"along_rows": True}).module
    assert [given.along_rows, given.along_columns] == [True, False]  # pyright: ignore


def test_a_film_may_be_a_sequence_of_images():
    assert find_subject(refusals.OfFrames).layout == "(B, Z, C, Y, X)"


def test_links_before_the_nodes_of_a_graph_are_no_tokens():
    assert find_subject(refusals.Linked).convention.names == ("h",)


def test_a_text_is_handed_on_and_embeddings_are_ready_made():
    subject = find_subject(refusals.StepOfParts)
    assert subject.module.scores.way == "product"  # pyright: ignore
    assert isinstance(subject.module.embedding, torch.nn.Embedding)  # pyright: ignore
    assert check(refusals.StepOfParts).bugs == ()


def test_lengths_and_layouts_are_those_that_the_code_asks_for():
    assert find_subject(refusals.OfFullSessions).fixed_sizes == (3, 9)
    assert find_subject(refusals.OfItemsFirst).layout == "(T, B) ids"
    assert find_subject(refusals.OfBags).convention.features == (1, 28, 28)
