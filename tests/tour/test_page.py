"""The page is self-contained and well-formed, with a heat map and a line of code for every step."""

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

    def having(self, css_class: str) -> list[dict[str, str | None]]:
        return [
            attributes
            for _, attributes in self.elements
            if css_class in (attributes.get("class") or "").split()
        ]


@pytest.fixture(scope="module", params=["sentence", "larger", "hostile"])
def drawn(request):
    tokens = {
        "sentence": inputs.sentence(),
        "larger": inputs.Tokens(torch.randn(40, 64), tuple(map(str, range(40))), "a matrix"),
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


def test_a_heat_map_for_every_step(drawn):
    report, text = drawn
    steps = [step for _, result in report.results for run in result.runs for step in run.steps]
    parsed = Page(text)
    assert len(steps) > 80
    assert len(parsed.having("step")) == len(steps)
    assert len(parsed.having("heat-map")) == len(steps) + 1  # including that of the tokens


def test_the_line_of_every_step_is_shown(drawn):
    _, text = drawn
    parsed = Page(text)
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for step in parsed.having("step"):
        assert step["data-line"] in ids


def test_links_lead_somewhere(drawn):
    _, text = drawn
    parsed = Page(text)
    ids = {attributes.get("id") for _, attributes in parsed.elements}
    links = [attributes["href"] for tag, attributes in parsed.elements if tag == "a"]
    assert len(links) > len(ladder.LADDER)
    assert all(link.startswith("#") and link[1:] in ids for link in links)


def test_nothing_is_loaded_from_other_files(drawn):
    _, text = drawn
    for tag, attributes in Page(text).elements:
        assert tag not in {"img", "iframe", "object", "embed"}
        assert "src" not in attributes
        assert tag != "link" or attributes["href"] == "data:,"
    assert "@import" not in text
    assert "url(" not in text


def test_every_comparison_is_shown(drawn):
    report, text = drawn
    assert text.count("✓ agrees") == len(report.comparisons)
    assert "✗" not in text


def test_labels_are_escaped(drawn):
    _, text = drawn
    assert "<script>alert" not in text
