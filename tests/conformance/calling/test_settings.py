"""Constructors and flags of public code: what a class leaves open is chosen so that its bugs show."""

from __future__ import annotations

import pytest

from conformance.calling import settings
from heedful import check
from heedful.conformance.calling.layouts import documented_axes
from heedful.conformance.calling.subject import find_subject


@pytest.mark.parametrize(
    "target",
    [
        settings.Switched,
        settings.OfUnknownWidth,
        settings.OfChannels,
        settings.OfVolume,
        settings.OfLists,
        settings.OfOneSize,
        settings.Transposing,
        settings.Angles,
        settings.Forgiven,
        settings.OfAssertedKind,
        settings.OfSquares,
        settings.OfPretrained,
        settings.OfOneKey,
    ],
)
def test_sound_modules_are_called_without_a_false_alarm(target):
    assert not check(target).bugs


@pytest.mark.parametrize(
    ("target", "arguments", "bug"),
    [
        (settings.SplitByView, {}, "heads-mixed-split"),
        (settings.OfMixedFrames, {}, "heads-mixed-split"),
        (settings.Forgiven, {"fill": False}, "mask-after-softmax"),
        (settings.Unconstructed, {}, "crashes"),
        (settings.SplitSquares, {}, "heads-mixed-split"),
    ],
)
def test_their_bugs_are_named(target, arguments, bug):
    assert bug in [finding.name for finding in check(target, arguments=arguments).bugs]


def test_a_flag_may_decide_whether_a_target_is_causal():
    report = check(settings.Decoding, causal=True)
    assert not [it for it in report.findings if it.level in ("bug", "suspicious")]
    assert ("also with", "is_decoder=False") in [(it.name, it.value) for it in report.facts]


def test_a_module_that_is_made_within_a_call_is_looked_into():
    report = check(settings.OfPretrained)
    assert not [finding for finding in report.findings if finding.level == "not-testable"]


def test_a_batch_size_that_the_code_has_fixed_is_tried():
    assert find_subject(settings.OfFixedBatch).fixed_sizes == (6, 5)


def test_an_axis_may_be_documented_by_a_letter_and_its_size():
    assert list(documented_axes(settings.OfRelativePositions(), "pos")) == ["BR "]
