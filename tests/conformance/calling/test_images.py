"""Models of whole images are called with images, though no row of their results belongs to a pixel."""

from __future__ import annotations

import pytest

from conformance.calling import images
from heedful.conformance import check
from heedful.conformance.calling.subject import find_subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.expectations import Expected


@pytest.mark.parametrize("model", [images.OfPatches, images.OfRearranged, images.OfDigits])
def test_a_model_of_whole_images_is_called_and_is_sound(model):
    report = check(model)
    assert not report.findings, report


@pytest.mark.parametrize(
    ("model", "dim"), [(images.OfPatches, 1), (images.OfRearranged, 1), (images.OfDigits, 1)]
)
def test_a_softmax_over_the_wrong_axis_of_its_patches_is_named(model, dim):
    report = check(model, arguments={"dim": dim})
    assert [finding.name for finding in report.findings] == ["softmax-wrong-dim"], report


def test_heads_with_as_many_features_as_an_image_has_pixels_compare_tokens():
    report = check(images.OfPatches, arguments={"dim": 1, "embed_dim": 2 * 8**2})
    assert [finding.name for finding in report.findings] == ["softmax-wrong-dim"], report


def test_an_attention_over_the_batch_that_hides_every_patch_is_named():
    report = check(images.OverTheBatch)
    assert [finding.name for finding in report.findings] == ["batch-mixed"], report
    assert "TransformerEncoderLayer" in report.findings[0].place.source


def test_a_class_whose_defaults_are_for_large_images_is_built_for_small_ones():
    subject = find_subject(images.OfPatches)
    assert subject.fixed_sizes == (2, 8**2)
    assert find_subject(images.OfPatches, arguments={"img_size": 32}).fixed_sizes == (2, 32**2)


def test_a_map_of_the_pixels_is_no_pooled_result():
    assert not find_subject(images.OfThreeMaps).convention.pooled


def test_features_that_are_dropped_from_a_pooled_result_are_no_sure_bug():
    report = check(images.OfDroppedFeatures)
    assert [(it.name, it.level) for it in report.findings] == [("dropout-misplaced", "suspicious")]


def test_not_every_pixel_of_a_large_image_is_changed(monkeypatch):
    subject, calls = find_subject(images.OfPatches, arguments={"img_size": 32}), []
    forward = images.OfPatches.forward
    monkeypatch.setattr(images.OfPatches, "forward", lambda *it: calls.append(0) or forward(*it))
    influence = Evidence(subject, Expected()).influence
    assert influence[0, :, 0].any()
    assert len(calls) < 100 < influence.shape[1]


@pytest.mark.parametrize("module", [images.PooledMaps, images.ReadBySize])
def test_a_module_of_feature_maps_whose_axes_are_read_one_by_one_is_called(module):
    assert not check(module).findings
    report = check(module, arguments={"over": 1})
    assert [finding.name for finding in report.findings] == ["softmax-wrong-dim"], report


def test_the_side_of_a_feature_map_is_told_by_a_table_of_its_pixels():
    assert find_subject(images.PooledMaps).fixed_sizes == (2, 4**2)
    assert find_subject(images.PooledMaps, arguments={"side_of_grid": 5}).fixed_sizes == (2, 5**2)


def test_a_fixed_number_of_columns_is_no_bug():
    assert not check(images.OfColumns).findings


def test_columns_that_are_counted_as_rows_are_found():
    assert not check(images.OfDistances).findings
    report = check(images.OfDistances, arguments={"swapped": True})
    assert "length-dependent" in [bug.name for bug in report.bugs], report


def test_one_side_in_the_place_of_both_is_found():
    assert not check(images.OfOneSide).bugs
    assert not check(images.OfSquares).bugs
    (bug,) = check(images.OfOneSide, arguments={"square": True}).bugs
    assert bug.name == "length-dependent"
    assert "W, W" in bug.place.source


@pytest.mark.parametrize("turned", [True, False])
def test_a_map_that_is_pooled_has_more_than_one_pixel_left(turned):
    report = check(images.OfPooledMaps, arguments={"turned": turned})
    assert [it.name for it in report.bugs] == ([] if turned else ["softmax-wrong-dim"]), report


def test_a_batch_on_the_third_axis_is_not_mixed():
    assert not check(images.OfAlignedRows).bugs
