"""The page is self-contained and well-formed, and has a view with the code of every run. tests/viewer/ drives it."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch

from heedful.tour import inputs, ladder
from heedful.tour.report.html import as_html
from heedful.tour.run import run_tour

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Collects the elements, and checks that they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    @property
    def ids(self) -> list[str | None]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]


def data_of(text: str) -> dict:
    found = re.search(r'id="heedful-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module", params=["sentence", "larger", "hostile"])
def drawn(request):
    tokens = {
        "sentence": inputs.sentence(),
        "larger": inputs.Tokens(torch.randn(300, 64), tuple(map(str, range(300))), "a matrix"),
        "hostile": inputs.Tokens(
            torch.eye(2), ("<script>alert(1)</script>", '"&'), "<img src=http://x>"
        ),
    }[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heedful.tour.speed.SECONDS", 0.0)
        patch.setattr("heedful.tour.speed.TOKENS", 32)
        report = run_tour(tokens, ladder.LADDER)
    return report, as_html(report)


def test_well_formed(drawn):
    _, text = drawn
    assert Page(text).open == []


def test_every_named_step_of_every_run_is_shown(drawn):
    report, text = drawn
    runs = [run for view in data_of(text)["views"] for run in view.get("runs", ())]
    recorded = [run for _, result in report.results for run in result.runs]
    assert [run["title"] for run in runs] == [run.title for run in recorded]
    for shown, run in zip(runs, recorded, strict=True):
        names = [node["name"] for node in shown["nodes"] if node["shown"]]
        assert {step.name for step in run.steps} <= set(names)


def test_the_weights_are_shown(drawn):
    _, text = drawn
    runs = [run for view in data_of(text)["views"] for run in view.get("runs", ())]
    shown = {node["name"] for run in runs for node in run["nodes"] if node["kind"] == "parameter"}
    for name in ("query", "key", "value"):
        assert {f"W_{name}", f"W_{name}.weight", f"heads.1.W_{name}.weight"} <= shown
    assert "out_proj.bias" in shown


def test_two_routes_stand_side_by_side(drawn):
    _, text = drawn
    pairs = [view for view in data_of(text)["views"] if len(view.get("runs", ())) == 2]
    assert len(pairs) == 1
    assert "renormalise" in pairs[0]["runs"][0]["title"]


def test_the_line_of_every_step_is_shown(drawn):
    _, text = drawn
    ids = Page(text).ids
    assert len(ids) == len(set(ids))
    runs = [run for view in data_of(text)["views"] for run in view.get("runs", ())]
    named = [
        node for run in runs for node in run["nodes"] if node["shown"] and node["kind"] == "step"
    ]
    assert len(named) > 80
    assert all(node["line"] in ids for node in named)


def test_links_lead_somewhere(drawn):
    _, text = drawn
    parsed = Page(text)
    links = [attributes["href"] for tag, attributes in parsed.elements if tag == "a"]
    assert len(links) > len(ladder.LADDER)
    assert all(link.startswith("#") and link[1:] in parsed.ids for link in links)


def test_nothing_is_loaded_from_other_files(drawn):
    _, text = drawn
    for tag, attributes in Page(text).elements:
        assert tag not in {"img", "iframe", "object", "embed"}
        assert "src" not in attributes
        assert tag != "link" or attributes["href"] == "data:,"
    assert "default-src 'none'" in text


def test_every_comparison_is_shown(drawn):
    report, text = drawn
    assert text.count("✓ agrees") == len(report.comparisons)
    assert "✗ differs" not in text


def test_labels_are_escaped(drawn):
    _, text = drawn
    assert "<script>alert" not in text


def test_a_page_of_many_tokens_stays_small(drawn):
    _, text = drawn
    assert len(text) < 15_000_000
