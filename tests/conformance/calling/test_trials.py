"""Where neither names nor documentation tell the shapes of arguments, many are tried."""

from __future__ import annotations

import pytest
import torch

from conformance.calling import trials
from heedful.conformance import check
from heedful.conformance.calling.subject import find_subject
from heedful.errors import ArgumentError


@pytest.mark.parametrize(
    ("target", "tokens"),
    [
        pytest.param(trials.Scored, "history", marks=pytest.mark.slow),
        (trials.Turned, "x"),
        (trials.OfMaps, "x"),
        (trials.OfNeighbors, "rel_xyz"),
        (trials.OfRatings, "candidates"),
    ],
)
def test_a_call_is_found_by_trial_and_the_module_is_sound(target, tokens):
    assert find_subject(target).convention.names[0] == tokens
    report = check(target)
    assert report.bugs == (), report


@pytest.mark.parametrize(
    ("target", "name", "line"),
    [
        pytest.param(
            *(trials.Unweighed, "attention-ignored", "output = history.sum(dim=1)"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(trials.OfTornMaps, "heads-mixed-split", "return x.view(b, h * w, c)"),
            marks=pytest.mark.slow,
        ),
        (trials.Misspelled, "crashes", "premute"),
    ],
)
def test_a_bug_behind_a_call_by_trial_is_named(target, name, line):
    (bug,) = check(target).bugs
    assert bug.name == name
    assert line in bug.place.source


def test_a_single_query_of_an_example_holds_no_tokens():
    report = check(
        trials.Unweighed(8),
        example=(torch.randn(3, 1, 8), torch.randn(3, 6, 8), torch.ones(3, 6, 1)),
    )
    assert [it.name for it in report.bugs] == ["attention-ignored"]


@pytest.mark.parametrize("torn", [False, True])
def test_a_split_of_other_tokens_than_the_first_ones_is_seen(torn):
    example = torch.randn(2, 6, 16), torch.randn(2, 6, 24), torch.randn(2, 6, 8)
    report = check(trials.OfThreeWidths(torn), example=example)
    found = [(it.name, it.place.source) for it in report.bugs if it.place]
    assert [name for name, _ in found] == (["heads-mixed-split"] if torn else [])
    assert all("x.reshape(b, 4, n, 6)" in line for _, line in found)


def test_what_depends_on_the_roles_of_arguments_that_were_found_by_trial_is_a_suspicion():
    report = check(trials.Joined)
    assert find_subject(trials.Joined).convention.by_trial
    assert report.bugs == (), report
    assert {it.level for it in report.findings} == {"suspicious"}


@pytest.mark.slow
def test_a_tuple_of_states_and_their_mask_and_the_last_layer_s_state_are_tried():
    report = check(trials.OfLastState)
    assert find_subject(trials.OfLastState).convention.by_trial
    assert report.bugs == (), report


def test_a_comment_behind_the_signature_tells_the_layout():
    report = check(trials.OfStatistics)
    assert find_subject(trials.OfStatistics).layout == "(B, C, T)"
    assert report.bugs == (), report


def test_an_example_of_ours_that_fails_is_no_bug_of_the_target():
    with pytest.raises(ArgumentError, match="expected a call that works"):
        check(trials.OfWindows)


def test_the_weights_of_the_step_before_are_no_mask():
    report = check(trials.OfEarlierWeights)
    assert report.bugs == (), report


@pytest.mark.parametrize("torn", [False, True])
def test_a_documented_number_of_tokens_is_the_one_that_the_constructor_gets(torn):
    report = check(trials.OfAgents, arguments={"torn": torn})
    assert [it.name for it in report.bugs] == (["heads-mixed-split"] if torn else []), report
