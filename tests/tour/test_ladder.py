"""The rungs: their numbers are the documents' own, and a wrong route does not pass."""

import json
from pathlib import Path

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.textbook import causal, simplified
from heedful.tour import inputs, ladder, report, routes
from heedful.tour.arranging import arrange
from heedful.tour.comparison import Comparison, compare, largest_difference
from heedful.tour.meanings import MEANINGS
from heedful.tour.walks import head_size, value

DOCUMENT = json.loads((Path(__file__).parents[1] / "data" / "figures.json").read_text())
FIGURES = {figure["id"]: figure for figure in DOCUMENT["figures"]}
NAMES = [rung.name for rung in ladder.LADDER]


def tokens_of(matrix: torch.Tensor) -> inputs.Tokens:
    return inputs.Tokens(matrix, tuple(map(str, range(len(matrix)))), "a test's matrix")


def taken(tokens: inputs.Tokens, *names: str) -> report.Report:
    return report.take(tokens, tuple(ladder.choose(name)[0] for name in names or NAMES))


def trace(found: report.Report, walk: int = 0):
    ((_, climb),) = found.climbs
    return climb.walks[walk].trace


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
    rung, walk, name = PRINTED[figure]
    matrix = torch.tensor(DOCUMENT["inputs"]["C"]["values"])
    shown = value(trace(taken(tokens_of(matrix), rung), walk), name)
    expected = torch.tensor(FIGURES[figure]["expected"])
    torch.testing.assert_close(shown, expected, rtol=0, atol=FIGURES[figure]["tolerance"])


def test_all_routes_agree_on_the_sentence():
    found = taken(inputs.sentence())
    assert len(found.comparisons) > 30
    assert found.disagreements == ()


@pytest.mark.parametrize(
    ("shape", "scale"),
    [((1, 1), 1), ((2, 1), 1), ((3, 2), 0), ((40, 64), 1), ((12, 384), 3), ((50, 20), 1e5)],
)
def test_all_routes_agree_on_other_matrices(shape, scale):
    found = taken(tokens_of(scale * torch.randn(shape)))
    assert found.disagreements == ()


@pytest.mark.parametrize(
    ("width", "size"), [(1, 1), (2, 1), (3, 2), (10, 5), (64, 32), (384, 32), (4096, 32)]
)
def test_heads_fit_any_width(width, size):
    assert head_size(width) == size


def test_weights_are_carried_upwards():
    upwards = ["self-attention-v2", "causal-attention", "wrapper"]
    queries = [trace(taken(inputs.sentence(), name)).all("queries")[0].value for name in upwards]
    assert torch.equal(queries[0], queries[1])
    assert torch.equal(queries[1], queries[2])
    split = trace(taken(inputs.sentence(), "multi-head"))
    torch.testing.assert_close(value(split, "queries_by_head")[0], queries[2])


def test_heads_are_arranged_first_wherever_the_module_has_them():
    arranged = []
    for name in ("multi-head", "einsum"):
        ((_, climb),) = taken(inputs.sentence(), name).climbs
        (walk,) = climb.walks
        step = walk.trace["queries_by_head"]
        arranged.append(arrange(step, walk.meanings[step.name], inputs.WORDS))
    split, einsum = arranged
    torch.testing.assert_close(split.tensor, einsum.tensor)
    assert split.rows == einsum.rows == inputs.WORDS
    assert split.columns == einsum.columns == ("0", "1")


def test_a_rung_does_not_depend_on_those_before_it():
    alone = trace(taken(inputs.sentence(), "dropout"))
    climbs = {rung.name: climb for rung, climb in taken(inputs.sentence()).climbs}
    among = climbs["dropout"].walks[0].trace
    assert torch.equal(value(alone, "dropped_weights"), value(among, "dropped_weights"))


def test_the_callers_random_state_and_gradients_stay():
    before = torch.get_rng_state()
    taken(inputs.sentence())
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


def test_every_step_that_a_variable_holds_has_a_meaning():
    for rung, climb in taken(inputs.sentence()).climbs:
        for walk in climb.walks:
            held = {step.name for step in walk.trace if "·" not in step.name}
            assert held <= set(MEANINGS), rung.name
            assert len(walk.steps) >= 3


WRONG = {
    "loops": (simplified, "scores_by_loops", "simplified", "nested loops"),
    "naive softmax": (simplified, "weights_by_naive_softmax", "simplified", "naive softmax"),
    "renormalising": (causal, "weights_by_renormalising", "causal-weights", "renormalising"),
    "ours": (routes, "attention", "multi-head", "heedful.attention()"),
    "ours with dropout": (routes, "attention", "dropout", "dropout_p"),
}


@pytest.mark.parametrize(("module", "function", "rung", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_route_is_named(monkeypatch, module, function, rung, said):
    right = getattr(module, function)

    def wrong(*inputs, **options):
        weights = right(*inputs, **options) * 1.001
        return weights  # noqa: RET504 - the recorder needs the name

    monkeypatch.setattr(module, function, wrong)
    found = taken(inputs.sentence(), rung).disagreements
    assert found
    assert any(said in comparison.route for place, comparison in found if place == rung)


def test_a_wrong_timed_route_is_named(monkeypatch):
    from heedful.tour import timing

    monkeypatch.setattr(timing, "attention", lambda query, key, value, mask: value)
    (place, comparison), *others = taken(inputs.sentence(), "wrapper").disagreements
    assert (place, comparison.route, others) == ("timing", "heedful.attention()", [])


def test_nan_never_agrees():
    nan = torch.tensor([1.0, torch.nan])
    (comparison,) = compare("x", ("one", torch.ones(2)), ("other", nan), tolerance=1.0)
    assert not comparison.agrees
    assert not Comparison("x", "one", "other", float("nan"), float("inf")).agrees


def test_differences_of_infinities_and_of_nothing():
    infinite = torch.tensor([1.0, -torch.inf])
    assert largest_difference(infinite, infinite + 0) == 0.0
    assert largest_difference(infinite, torch.tensor([1.5, 0.0])) == float("inf")
    assert largest_difference(torch.ones(0, 2), torch.ones(0, 2)) == 0.0


def test_an_unknown_rung_is_told_the_names():
    with pytest.raises(ArgumentError) as caught:
        ladder.choose("transformer")
    assert all(name in str(caught.value) for name in NAMES)
