"""The rungs reproduce the figures of the documents, and a wrong route is found."""

import json
from pathlib import Path

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.textbook import causal, simplified
from heedful.tour import inputs, ladder, routes, speed
from heedful.tour.comparison import Comparison, compare, largest_difference
from heedful.tour.descriptions import DESCRIPTIONS
from heedful.tour.recordings import head_size, last_value
from heedful.tour.report import TourReport
from heedful.tour.report.matrices import labelled_matrix
from heedful.tour.run import run_tour

DOCUMENT = json.loads((Path(__file__).parents[1] / "data" / "figures.json").read_text())
FIGURES = {figure["id"]: figure for figure in DOCUMENT["figures"]}
NAMES = [rung.name for rung in ladder.LADDER]


def tokens_of(matrix: torch.Tensor) -> inputs.Tokens:
    return inputs.Tokens(matrix, tuple(map(str, range(len(matrix)))), "a test's matrix")


def tour(tokens: inputs.Tokens, *names: str) -> TourReport:
    return run_tour(tokens, tuple(ladder.choose_rungs(name)[0] for name in names or NAMES))


def trace(report: TourReport, run: int = 0):
    ((_, result),) = report.results
    return result.runs[run].trace


PRINTED = {
    "C.scores.all": ("simplified", 1, "scores"),
    "C.weights.all": ("simplified", 1, "weights"),
    "C.context.all": ("simplified", 1, "context"),
    "C.scores.query1": ("simplified", 0, "scores"),
    "C.self_attention.linear": ("self-attention-v2", 0, "context"),
    "C.causal.weights_before_mask": ("causal-weights", 0, "full_weights"),
    "C.causal.multiplied": ("causal-weights", 0, "kept_weights"),
    "C.causal.renormalised": ("causal-weights", 0, "weights"),
    "C.causal.weights": ("causal-weights", 1, "weights"),
    "C.causal.dropout": ("dropout", 0, "dropped_weights"),
}


@pytest.mark.parametrize("figure", PRINTED)
def test_the_tour_shows_the_documents_figures(figure):
    rung, run, name = PRINTED[figure]
    matrix = torch.tensor(DOCUMENT["inputs"]["C"]["values"])
    shown = last_value(trace(tour(tokens_of(matrix), rung), run), name)
    expected = torch.tensor(FIGURES[figure]["expected"])
    torch.testing.assert_close(shown, expected, rtol=0, atol=FIGURES[figure]["tolerance"])


def test_all_routes_agree_on_the_sentence():
    report = tour(inputs.sentence())
    assert len(report.comparisons) > 30
    assert report.disagreements == ()


@pytest.mark.parametrize(
    ("shape", "scale"),
    [((1, 1), 1), ((2, 1), 1), ((3, 2), 0), ((40, 64), 1), ((12, 384), 3), ((50, 20), 1e5)],
)
def test_all_routes_agree_on_other_matrices(shape, scale):
    assert tour(tokens_of(scale * torch.randn(shape))).disagreements == ()


@pytest.mark.parametrize(
    ("width", "size"), [(1, 1), (2, 1), (3, 2), (10, 5), (64, 32), (384, 32), (4096, 32)]
)
def test_heads_fit_any_width(width, size):
    assert head_size(width) == size


def test_rungs_use_the_same_weights():
    names = ["self-attention-v2", "causal-attention", "wrapper"]
    queries = [trace(tour(inputs.sentence(), name)).all("queries")[0].value for name in names]
    assert torch.equal(queries[0], queries[1])
    assert torch.equal(queries[1], queries[2])
    split = trace(tour(inputs.sentence(), "multi-head"))
    torch.testing.assert_close(last_value(split, "queries_by_head")[0], queries[2])


def test_heads_are_shown_first_wherever_the_module_has_them():
    matrices = []
    for name in ("multi-head", "einsum"):
        ((_, result),) = tour(inputs.sentence(), name).results
        (run,) = result.runs
        step = run.trace["queries_by_head"]
        matrices.append(labelled_matrix(step, run.descriptions[step.name], inputs.WORDS))
    split, einsum = matrices
    torch.testing.assert_close(split.tensor, einsum.tensor)
    assert split.rows == einsum.rows == inputs.WORDS
    assert split.columns == einsum.columns == ("0", "1")


def test_a_rung_does_not_depend_on_those_before_it():
    alone = trace(tour(inputs.sentence(), "dropout"))
    results = {rung.name: result for rung, result in tour(inputs.sentence()).results}
    after_others = results["dropout"].runs[0].trace
    name = "dropped_weights"
    assert torch.equal(last_value(alone, name), last_value(after_others, name))


def test_the_callers_random_state_and_grad_mode_are_restored():
    before = torch.get_rng_state()
    tour(inputs.sentence())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


def test_every_step_assigned_to_a_variable_has_a_description():
    for rung, result in tour(inputs.sentence()).results:
        for run in result.runs:
            names = {step.name for step in run.trace if "·" not in step.name}
            assert names <= set(DESCRIPTIONS), rung.name
            assert len(run.steps) >= 3


WRONG = {
    "loops": (simplified, "scores_by_loops", "simplified", "nested loops"),
    "naive softmax": (simplified, "weights_by_naive_softmax", "simplified", "naive softmax"),
    "renormalising": (causal, "weights_by_renormalising", "causal-weights", "renormalising"),
    "ours": (routes, "attention", "multi-head", "heedful.attention()"),
    "ours with dropout": (routes, "attention", "dropout", "dropout_p"),
}


@pytest.mark.parametrize(("module", "function", "rung", "route"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_route_is_named(monkeypatch, module, function, rung, route):
    right = getattr(module, function)

    def wrong(*inputs, **options):
        weights = right(*inputs, **options) * 1.001
        return weights  # noqa: RET504 - the recording needs the name

    monkeypatch.setattr(module, function, wrong)
    disagreements = tour(inputs.sentence(), rung).disagreements
    assert any(route in comparison.route for place, comparison in disagreements if place == rung)


def test_a_wrong_timed_route_is_named(monkeypatch):
    monkeypatch.setattr(speed, "attention", lambda query, key, value, mask: value)
    (place, comparison), *others = tour(inputs.sentence(), "wrapper").disagreements
    assert (place, comparison.route, others) == ("timing", "heedful.attention()", [])


def test_nan_never_agrees():
    nan = torch.tensor([1.0, torch.nan])
    (comparison,) = compare("x", ("one", torch.ones(2)), ("other", nan), tolerance=1.0)
    assert not comparison.agrees
    assert not Comparison("x", "one", "other", float("nan"), float("inf")).agrees


def test_differences_of_infinities_and_of_empty_tensors():
    infinite = torch.tensor([1.0, -torch.inf])
    assert largest_difference(infinite, infinite + 0) == 0.0
    assert largest_difference(infinite, torch.tensor([1.5, 0.0])) == float("inf")
    assert largest_difference(torch.ones(0, 2), torch.ones(0, 2)) == 0.0


def test_an_unknown_rung_gives_the_names_of_all():
    with pytest.raises(ArgumentError) as caught:
        ladder.choose_rungs("transformer")
    assert all(name in str(caught.value) for name in NAMES)
