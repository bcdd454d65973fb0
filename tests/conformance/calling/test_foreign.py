"""Attentions in foreign styles are called rightly, and are never blamed for a failed attempt."""

from __future__ import annotations

import pytest
import torch

from conformance.calling import foreign
from heedful.conformance import check, checking
from heedful.conformance.calling import discovery, subject, trials
from heedful.conformance.calling.subject import find_subject
from heedful.errors import ArgumentError


@pytest.mark.parametrize(
    "target",
    [
        foreign.Kept,
        foreign.Dropped,
        foreign.Latents(),
        foreign.RealRotary,
        foreign.Insisting,
        foreign.NextItem,
        foreign.Omitted,
        foreign.Windowed,
        foreign.Sizes,
        foreign.OfSettings,
        foreign.Divided,
        foreign.ImageAttention,
        foreign.ChannelsLast,
        foreign.Asserted,
        foreign.Unannotated,
        foreign.OneQuery,
        foreign.Star,
        foreign.PixelWeights,
        foreign.OfGrid,
        foreign.OfShape,
        foreign.OfEdges,
        foreign.OfPacked,
        foreign.HeadsLast,
        foreign.heads_last,
        foreign.heads_commented,
        foreign.PartsOfPatches,
        foreign.Rows,
        foreign.HandedOn,
        foreign.OfDistances,
        foreign.Unset,
        foreign.AfterContext,
        foreign.Continued,
        foreign.OfPairs,
        foreign.ManyArguments,
        foreign.OverChannels,
        foreign.OneOfTwo,
        foreign.OfSides,
        foreign.OfPlaces,
        foreign.OfEdgeFeatures,
        foreign.InBlocks,
        foreign.OfChannels,
        foreign.Axial,
        foreign.OfPixels,
        foreign.Molecule,
        foreign.OfAngles,
        foreign.Captions,
        foreign.OfSquares,
        foreign.Memory,
        foreign.OfBothSides,
        foreign.OfUnsetWidth,
        foreign.OfCountedDistances,
        foreign.FiveAxes,
        foreign.OfGroups,
        foreign.AroundPixels,
        foreign.OfVideo,
        foreign.OfJoinedState,
        foreign.OfStateWithAxis,
        foreign.OfLinks,
        foreign.InTiles,
        foreign.OfOptionalKeys,
        foreign.OfEncoderLayer,
        foreign.Translator,
        foreign.OfScaledVideo,
        foreign.OfWiderState,
        foreign.OfLocation,
        foreign.OfProjectedDistances,
        foreign.OfHops,
        foreign.InsistingOnAxes,
        foreign.OfJoints,
        foreign.OfLengthsInTwoAxes,
        foreign.OfGivenRotation,
        foreign.OfPackedTokens,
        foreign.Transposing,
        foreign.AfterPast,
        foreign.Transposed,
        foreign.Refining,
    ],
    ids=lambda it: getattr(it, "__name__", type(it).__name__),
)
def test_foreign_styles_are_called_without_a_false_alarm(target):
    report = check(target)
    assert not report.bugs
    assert [run.name for run in report.probes if run.name == "calling"] == []


@pytest.mark.parametrize(
    ("target", "layout"),
    [
        (foreign.HeadsLast, "(B, T, H, D)"),
        (foreign.heads_last, "(B, T, H, D)"),
        (foreign.heads_commented, "(B, T, H, D)"),
        (foreign.PartsOfPatches, "(B, P, T, C)"),
        (foreign.Rows, "(T, P, B, C)"),
        (foreign.ChannelsLast, "(B, Y, X, C)"),
        (foreign.OfGroups, "(B, P, T, C)"),
        (foreign.AroundPixels, "(B, Y, X, C)"),
        (foreign.OfVideo, "(B, C, Z, Y, X)"),
        (foreign.OfScaledVideo, "(B, C, Z, Y, X)"),
    ],
)
def test_the_order_of_axes_is_read_or_decided_by_what_mixes(target, layout):
    assert find_subject(target).layout == layout


def test_vectors_of_distances_are_those_of_the_same_distances_at_every_length():
    subject = find_subject(foreign.OfDistances)
    longer, shorter = (subject.arguments(subject.draw(2, T))["pos_enc"] for T in (7, 5))
    assert longer.shape == (2, 13, longer.shape[-1])
    assert torch.equal(longer[:, 2:-2], shorter)


def test_a_mask_of_an_unknown_name_is_found_by_what_it_hides():
    kept = find_subject(foreign.Kept).padding
    assert kept is not None
    assert (kept.name, kept.form, kept.true_keeps) == ("not_empty", "(B, T)", True)
    blank = find_subject(foreign.Dropped).padding
    assert blank is not None
    assert (blank.name, blank.true_keeps) == ("blank", False)


def test_a_fixed_number_of_tokens_is_learned_from_the_exception():
    assert find_subject(foreign.Windowed).fixed_sizes == (3, 9)


def test_a_context_may_have_another_width():
    inputs = find_subject(foreign.Latents()).draw(2, 5)
    assert [it.shape[-1] for it in inputs.arguments.values()] == [10, 14]


@pytest.mark.parametrize("target", [foreign.Matrix, foreign.Strict])
def test_what_cannot_be_called_is_no_bug(target):
    with pytest.raises(ArgumentError, match=r"Tried: x \(3, 5, 24\).*--example 'torch\.randn"):
        check(target)


def test_items_of_another_kind_than_tensors_are_no_bug():
    with pytest.raises(ArgumentError, match="has no attribute 'tokens'"):
        check(foreign.OfGroupsOfTokens)


@pytest.mark.parametrize("target", [foreign.Frequencies, foreign.OfLargeImages])
def test_images_of_other_sizes_are_no_bug(target):
    with pytest.raises(ArgumentError, match=r"Tried: x .*--example 'torch\.randn"):
        check(target)


def test_what_fails_for_every_valid_input_is_a_bug():
    report = check(foreign.WrongView)
    assert [bug.name for bug in report.bugs] == ["crashes"]
    place = report.bugs[0].place
    assert place is not None
    assert "view(B, -1)" in place.source


def test_calls_run_in_the_dtype_of_a_guessed_table():
    subject = find_subject(foreign.RealRotary)
    assert subject.run(subject.draw(2, 7)).dtype == torch.float64


def test_a_mask_that_is_not_cut_to_the_tokens_is_a_bug():
    bugs = check(foreign.Uncut).bugs
    assert [bug.name for bug in bugs] == ["length-dependent"]
    assert "With 10 tokens" in bugs[0].proof


def test_an_attribute_that_an_imported_file_lacks_is_a_bug():
    report = check(foreign.Outdated)
    (bug,) = report.bugs
    assert "has no attribute" in bug.proof


def test_the_search_for_a_call_ends(monkeypatch):
    """Each call sleeps for 0.2 s, so that few fit into the limit."""
    monkeypatch.setattr(discovery, "SEARCH_SECONDS", 0.5)
    monkeypatch.setattr(trials, "SECONDS", 0.5)
    monkeypatch.setattr(foreign.Slow, "calls", 0)
    with pytest.raises(ArgumentError, match="a call that works"):
        find_subject(foreign.Slow)
    assert foreign.Slow.calls < 100  # of 544


def test_no_other_size_is_tried_after_a_search_that_ran_out_of_time(monkeypatch):
    built, enough = [], discovery.SEARCH_SECONDS
    monkeypatch.setattr(discovery, "SEARCH_SECONDS", 1.0)
    monkeypatch.setattr(trials, "SECONDS", 0.5)
    for seconds in (enough, 0.0):
        monkeypatch.setattr(subject, "SEARCH_SECONDS", seconds)
        monkeypatch.setattr(foreign.Hopeless, "built", 0)
        with pytest.raises(ArgumentError, match="a call that works"):
            find_subject(foreign.Hopeless)
        built.append(foreign.Hopeless.built)
    assert built[1] == 1 < built[0]


def test_all_probes_together_end(monkeypatch):
    monkeypatch.setattr(checking, "ALL_SECONDS", 0.0)
    report = check(foreign.Kept)
    assert {it.level for it in report.findings} == {"not-testable"}
    assert all("not run, because the others have taken 0 s" in it.proof for it in report.findings)


@pytest.mark.parametrize("documented", [True, False])
def test_a_mask_that_does_not_fit_is_a_bug_where_it_is_made(documented):
    torch.manual_seed(0)
    real = torch.arange(5) < torch.tensor([[5], [3]])
    options = {} if documented else {"example": (torch.randn(2, 5, 24), real)}
    arguments = {"d_model": 24, "parts": 3}
    (bug,) = check(foreign.Folded, arguments=arguments, **options).bugs
    assert bug.name == "mask-broadcast"
    assert bug.place is not None
    assert bug.place.source.startswith("hidden = self.folded(")
    assert not check(foreign.FoldedWhole, arguments=arguments, **options).bugs


def test_one_query_for_each_sequence_attends_to_a_sequence():
    subject = find_subject(foreign.OneQuery)
    assert subject.convention.names == ("notes",)
    assert subject.convention.pooled
    assert subject.padding is not None
    assert subject.padding.name == "blank_mask"


def test_the_tokens_of_a_translator_are_those_of_the_translation():
    subject = find_subject(foreign.Translator)
    assert subject.convention.names == ("trg",)
    (bug,) = check(foreign.BackwardTranslator).bugs
    assert bug.name == "mask-inverted"
    assert bug.place is not None
    assert "triu" in bug.place.source


@pytest.mark.parametrize(
    ("target", "layout"),
    [(foreign.OfJoinedState, "(T, B, C)"), (foreign.OfStateWithAxis, "(B, T, C)")],
)
def test_a_state_has_another_width_than_keys_or_an_axis_of_its_own(target, layout):
    subject = find_subject(target)
    assert subject.convention.names == ("notes",)
    assert subject.layout == layout
    assert subject.convention.pooled


def test_a_mask_of_an_unknown_name_is_given_although_it_hides_nothing():
    (bug,) = check(foreign.OneQueryUnmasked).bugs
    assert bug.name == "mask-unused"
    assert bug.place is not None
    assert bug.place.source == "scores.masked_fill(hidden, -torch.inf)"


def test_the_pixels_of_a_documented_feature_map_are_keys():
    assert find_subject(foreign.PixelWeights).convention.names == ("points",)
    (bug,) = check(foreign.PixelWeightsOfAllHeads).bugs
    assert bug.name == "softmax-wrong-dim"
    assert "4 × 2 × 3" in bug.proof


def test_a_mask_of_the_pixels_of_a_feature_map_is_given():
    subject = find_subject(foreign.MaskedPixels)
    mask = subject.arguments(subject.draw(2, 5))["hidden_mask"]
    assert mask.shape == (2, 2, 3)
    assert not mask.any()
    report = check(foreign.MaskedPixels)
    assert not report.bugs
    assert report.coverage is not None
    assert not report.coverage.missed


def test_each_token_is_no_sequence_of_its_own_where_one_query_is_expected():
    assert find_subject(foreign.Memory).convention.names == ("key", "value")
    assert [bug.name for bug in check(foreign.MemoryShown).bugs] == ["mask-fill-too-small"]


def test_the_mask_of_an_example_shows_which_of_its_numbers_marks_real_tokens():
    real = torch.arange(7) < torch.tensor([7, 5])[:, None]
    memory = torch.randn(2, 7, 24)
    for mask in (real.long(), real.long().flip(1)):
        example = (torch.randn(2, 24), memory, memory, mask)
        padding = find_subject(foreign.MemoryShown, example=example).padding
        assert padding is not None
        assert padding.declared is True


def test_the_tokens_of_each_pixel_are_pooled():
    example = (torch.randn(2, 24, 3, 4, 5),)
    assert check(foreign.OfPiles, example=example, arguments={"dim": 24}).bugs == ()


@pytest.mark.parametrize("example", [None, (torch.randn(1, 3, 6), torch.randn(7, 3, 6))])
def test_a_module_may_return_the_weights_of_an_encoders_tokens_alone(example):
    assert find_subject(foreign.WeightsOfState, example=example).convention.names == (
        "encoder_outputs",
    )
    assert not check(foreign.WeightsOfState, example=example).bugs
    (bug,) = check(foreign.WeightsOverBatch, example=example).bugs
    assert bug.name == "softmax-wrong-dim"


def test_ids_are_given_beside_the_vectors_of_an_encoder():
    subject = find_subject(foreign.OfTranslation, causal=True)
    assert subject.convention.names == ("tgt",)
    assert subject.convention.vocabulary == 40
    arguments = subject.arguments(subject.draw(3, 5))
    assert arguments["frames"].shape == (3, 2, 24)
    assert arguments["frame_len"].tolist() == [2, 2, 2]
    report = check(foreign.OfTranslation, causal=True)
    assert not report.bugs
    assert "frame_len" in {fact.name: fact.value for fact in report.facts}["padding of frames"]


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (foreign.OfTranslationWithoutLengths, "frames_mask = None"),
        (foreign.OfConvertedLengths, "length = length.float()"),
    ],
)
def test_lengths_that_nothing_uses_are_a_mask_that_nothing_uses(target, line):
    (bug,) = check(target).bugs
    assert bug.name == "mask-unused"
    assert bug.place is not None
    assert bug.place.source == line
    assert "lengths" in bug.remedy


def test_a_documented_order_of_channels_and_frames_is_taken():
    convention = find_subject(foreign.OfChannelsFirst).convention
    assert (convention.layout, convention.pooled) == ("(B, C, T)", True)


def test_a_part_that_gets_the_mask_says_what_it_means():
    mask = find_subject(foreign.HandingOn).attention_mask
    assert mask is not None
    assert mask.declared is False
    assert not check(foreign.HandingOn).bugs
    assert [bug.name for bug in check(foreign.HandingOnWrongly).bugs] == ["mask-inverted"]


def test_a_leading_slice_of_a_shape_says_nothing_of_the_number_of_axes():
    with pytest.raises(ArgumentError, match="math domain error"):
        check(foreign.InLongBlocks)


def test_n_may_count_the_sequences():
    assert find_subject(foreign.NamedN).convention.layout == "(B, T, C)"


def test_a_mask_of_ours_that_hides_all_tokens_is_no_bug_of_the_target():
    report = check(foreign.HeldMask)
    assert report.bugs == (), report


def test_a_translation_does_not_see_its_later_tokens_in_its_source():
    report = check(foreign.EncodedText)
    assert not report.bugs
    assert ("causal", "yes") in [(it.name, it.value) for it in report.facts]


def test_a_time_of_a_diffusion_is_one_number_for_each_sequence():
    assert not check(foreign.Denoiser).bugs
