"""The pages in a browser: pointing, editing, the keyboard, accessibility, print, and nothing that leaves them."""

import json
import re
import zlib
from pathlib import Path

import pytest
import torch

import heedful
from heedful.conformance.grading.grade import Grade
from heedful.conformance.grading.html import as_page
from heedful.conformance.grading.submissions import Submission
from heedful.textbook import CausalAttention, EinsumMultiHeadAttention, MultiHeadAttention
from heedful.tour import inputs, ladder
from heedful.tour.report.html import as_html
from heedful.tour.run import run_tour
from heedful.viewer import Page, what_if
from viewer.browser import HOSTILE, violations, width_of

TOKENS = inputs.sentence()
MARKUP = next(iter(HOSTILE))
NAMES = (
    "one",
    "heads",
    "beside",
    "what if",
    "hostile",
    "large",
    "reduced",
    "report",
    "grades",
    "tour",
)
WITHOUT_SCRIPT = ("report", "grades")


def torn(tokens):
    """Attend without names for the steps, as a user might."""
    scores = tokens @ tokens.mT
    return torch.softmax(scores / tokens.shape[-1] ** 0.5, dim=-1) @ tokens


def sink(tokens):
    """Attend to the first key by far the most."""
    scores = 0.1 * tokens @ tokens.mT
    scores[:, 0] += 9
    return torch.softmax(scores, dim=-1) @ tokens


def pages() -> dict[str, Page]:
    torch.manual_seed(123)
    causal = CausalAttention(3, 2, context_length=6, dropout=0.5)
    heads = MultiHeadAttention(3, 4, context_length=6, num_heads=2).eval()
    einsum = EinsumMultiHeadAttention(3, 4, context_length=6, num_heads=2).eval()
    x = TOKENS.matrix
    return {
        "one": heedful.show(causal.eval(), x, labels=TOKENS.labels),
        "heads": heedful.show(heads, x[None], labels=TOKENS.labels),
        "beside": heedful.show(heads, x[None], labels=TOKENS.labels, beside=einsum),
        "what if": what_if(),
        "hostile": heedful.show(
            CausalAttention(3, 2, context_length=len(HOSTILE)),
            torch.randn(len(HOSTILE), 3),
            labels=tuple(HOSTILE),
            title=MARKUP,
        ),
        "large": heedful.show(torn, torch.randn(300, 32)),
        "reduced": heedful.show(sink, torch.randn(1600, 16)),
        "report": heedful.show(heedful.check(causal)),
    }


def grades() -> str:
    """Return the page of a class's grades."""
    report = heedful.check(CausalAttention(3, 2, context_length=6))
    submission = Submission(Path(MARKUP))
    found = [Grade(submission, "ok", report), Grade(submission, "timed out", reason=MARKUP)]
    return as_page(found, entry="Attention", submissions=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the files of all pages, by name."""
    folder = tmp_path_factory.mktemp("pages")
    written = {}
    for name, page in pages().items():
        written[name] = folder / f"{name.replace(' ', '-')}.html"
        page.save(written[name])
        frame = folder / f"frame of {name}.html"
        frame.write_text(f"<!doctype html><title>notebook</title>{page._repr_html_()}", "utf-8")
        written[f"frame of {name}"] = frame
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heedful.tour.speed.SECONDS", 0.0)
        patch.setattr("heedful.tour.speed.TOKENS", 32)
        one = ladder.choose_rungs("causal-weights")
        for name, rungs in {"tour": ladder.LADDER, "one rung": one}.items():
            written[name] = folder / f"{name.replace(' ', '-')}.html"
            written[name].write_text(as_html(run_tour(TOKENS, rungs)), "utf-8")
        written["grades"] = folder / "grades.html"
        written["grades"].write_text(grades(), "utf-8")
    return written


def ready(page) -> bool:
    return page.evaluate("document.documentElement.dataset.ready === 'true'")


def card(page, name: str):
    return page.locator(
        ".card", has=page.locator(".title code", has_text=re.compile(f"^{name}$"))
    ).first


def cell(page, name: str, row: int, column: int):
    return card(page, name).locator("tbody tr").nth(row).locator(".cell").nth(column)


def detail(page) -> str:
    return page.locator(".detail").inner_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_draws_itself_without_error_or_request(opened, name):
    it = opened(name)
    assert ready(it.page) or name in WITHOUT_SCRIPT
    assert it.complaints == []
    assert it.requests == []
    assert it.page.locator("h1").count() == 1


@pytest.mark.parametrize("name", ["one", "what if", "beside", "hostile"])
def test_a_page_works_in_a_sandboxed_frame(opened, name):
    it = opened(f"frame of {name}")
    frame = it.page.frames[1]
    frame.wait_for_selector("html[data-ready]")
    frame.locator(".card .cell").first.hover()
    assert "=" in frame.locator(".detail .entry").inner_text()
    assert frame.evaluate("window.origin") == "null"  # it can read nothing of the notebook
    assert it.complaints == []
    assert [url for url in it.requests if not url.startswith("about:srcdoc")] == []


@pytest.mark.parametrize(
    ("name", "dark"),
    # The check of a page takes up to half a minute, and that of the whole tour one. These have all parts of the others.
    [(name, False) for name in ("heads", "what if", "large", "reduced", "report", "grades")]
    + [("one", True)]
    + [
        pytest.param(*it, marks=pytest.mark.slow)
        for it in (
            *(("one", False), ("beside", False), ("hostile", False), ("one rung", False)),
            *(("what if", True), ("large", True), ("one rung", True)),
        )
    ],
)
def test_axe_finds_no_violation(opened, name, dark):
    page = opened(name, dark=dark).page
    if name not in WITHOUT_SCRIPT:
        page.locator(".card .cell, .card canvas").first.focus()
    assert violations(page) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_page_is_not_wider_than_its_window(opened, name):
    assert width_of(opened(name, width=360).page) <= 360


def test_pointing_at_a_score_shows_the_products_that_made_it(opened):
    page = opened("one").page
    cell(page, "scores", 1, 2).hover()
    text = detail(page)
    assert "scores[journey, starts]" in text
    rows = page.locator(".detail tbody tr").all_inner_texts()
    numbers = [[float(it.replace("−", "-")) for it in row.split()[1:]] for row in rows]
    assert len(numbers) == 2  # features of a head
    for left, right, product in numbers:
        assert left * right == pytest.approx(product, abs=1e-4)
    foot = page.locator(".detail tfoot tr > *").all_inner_texts()
    assert foot[:3] == ["sum", "", ""]  # a place without a number is empty
    total = float(page.locator(".detail tfoot").inner_text().split()[-1].replace("−", "-"))
    assert sum(row[2] for row in numbers) == pytest.approx(total, abs=2e-4)
    for name, row in (("queries", 1), ("keys", 2)):
        marked = card(page, name).locator("tbody tr").nth(row).locator(".marked")
        assert marked.count() == 2


def test_every_number_on_the_way_to_a_weight_is_explained(opened):
    page = opened("one").page
    for name, words in {
        "queries": ("x[journey, 0]", "W_query"),
        "scaled_scores": ("scores[journey, Your] / 1.414",),
        "masked_scores": ("may see this key",),
        "weights": ("subtracted first",),
        "context": ("values",),
    }.items():
        if name == "queries":
            cell(page, name, 1, 0).hover()
            assert "W_query.weight" in detail(page)
            continue
        cell(page, name, 1, 0).hover()
        for word in words:
            assert word in detail(page), name
    cell(page, "masked_scores", 0, 3).hover()
    assert "must not see this key" in detail(page)


def test_weights_formulas_and_reasons_are_shown(opened):
    page = opened("one").page
    for name in ("W_query.weight", "W_key.weight", "W_value.weight"):
        assert card(page, name).locator(".cell").count() == 6
    assert "scores[i, j] = Σₖ queries[i, k] · keys[j, k]" in card(page, "scores").inner_text()
    assert "gradients would vanish" in card(page, "scaled_scores").inner_text()


def test_one_query_is_followed(opened):
    page = opened("one").page
    follow = page.locator(".follow")
    page.get_by_label("Follow the query of").select_option(label="with")
    names = follow.locator("tbody th").all_inner_texts()
    assert names == [
        "scores",
        "scaled_scores",
        "mask",
        "masked_scores",
        "weights",
        "dropped_weights",
    ]
    shown = follow.locator("tbody tr").nth(4).locator("td").all_inner_texts()
    assert shown == card(page, "weights").locator("tbody tr").nth(3).locator("td").all_inner_texts()
    assert "“with”" in follow.locator(".title").inner_text()
    assert "add up to 1.0000" in follow.inner_text()
    cell(page, "weights", 5, 0).click()  # choosing a number follows its query
    assert "“step”" in follow.locator(".title").inner_text()


def test_the_keyboard_alone_reads_every_number(opened):
    page = opened("one").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SELECT"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("!!document.activeElement.closest('.card [aria-label=\"scores\"]')"):
            break
    assert "scores[Your, Your]" in detail(page)
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert "scores[journey, starts]" in detail(page)
    page.keyboard.press("End")
    assert "scores[journey, step]" in detail(page)
    page.keyboard.press("Enter")
    assert "“journey”" in page.locator(".follow .title").inner_text()


def test_focus_lights_the_line_of_a_card_and_the_cards_of_a_line(opened):
    page = opened("one").page
    cell(page, "weights", 0, 0).focus()
    assert "torch.softmax" in page.locator(".listing .lit").inner_text()
    line = page.locator(".listing [role=button]", has_text="queries @ keys.mT")
    line.focus()
    assert page.locator(".card.lit .title code").all_inner_texts() == ["scores"]
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('.card').textContent").startswith("scores")


def test_lines_of_code_are_not_clipped(opened):
    page = opened("heads").page
    wide = "[...document.querySelectorAll('.listing pre')].filter(it => it.scrollWidth > it.clientWidth + 1).length"
    assert page.evaluate(wide) == 0


def test_a_head_is_chosen_for_all_maps(opened):
    page = opened("heads").page
    before = {
        name: card(page, name).locator("td").all_inner_texts() for name in ("scores", "weights")
    }
    page.locator(".controls select").nth(1).select_option("1")
    for name, texts in before.items():
        assert card(page, name).locator("td").all_inner_texts() != texts
    cell(page, "scores", 1, 0).hover()
    assert "head 1" in detail(page)


def test_two_modules_side_by_side_show_their_difference(opened):
    page = opened("beside").page
    assert page.locator(".pairs > .title").all_inner_texts() == [
        "MultiHeadAttention",
        "EinsumMultiHeadAttention",
    ]
    differences = page.locator(".difference").all_inner_texts()
    assert "Equal to the left one, bit for bit." in differences  # the tokens and the mask
    assert any(text.startswith("Differs from the left one by up to") for text in differences)
    cell(page, "weights", 1, 0).hover()
    assert "EinsumMultiHeadAttention" in detail(page)


def test_hostile_text_is_shown_as_text(opened):
    it = opened("hostile")
    assert it.page.locator("img, iframe, object, svg[onload]").count() == 0
    assert it.page.locator("h1").inner_text() == MARKUP
    heads = card(it.page, "x").locator("tbody th").all_text_contents()
    assert heads == list(HOSTILE.values())
    it.page.get_by_label("Follow the query of").select_option(index=1)
    cell(it.page, "scores", 2, 1).hover()
    assert len(detail(it.page)) < 2000
    assert it.complaints == []
    assert it.requests == []


def test_a_few_large_blocks_do_not_make_a_reduced_map_white(opened):
    page = opened("reduced").page
    softmax = page.locator(".card", has_text="exp(").first
    assert "99 % of the blocks are smaller" in softmax.inner_text()
    light = """it => {
        const data = it.getContext("2d").getImageData(0, 0, it.width, it.height).data;
        let light = 0;
        for (let i = 0; i < data.length; i += 4) light += data[i] > 235;
        return light / (data.length / 4);
    }"""
    assert softmax.locator("canvas").evaluate(light) < 0.9


def test_a_large_map_is_read_by_the_keyboard(opened):
    page = opened("large").page
    canvas = page.locator(".card canvas").first
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert re.fullmatch(r"\S+, \S+: \S+", page.locator(".card .reading").first.inner_text())


@pytest.mark.parametrize("name", ["one", "what if", "tour"])
def test_maps_are_printed_without_backgrounds(opened, name):
    page = opened(name, dark=True).page
    content = page.pdf(print_background=False)
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL)
    drawn = b"".join(_inflated(stream) for stream in streams)
    colors = set(re.findall(rb"([\d.]+ [\d.]+ [\d.]+) rg", drawn))
    assert len(colors) > 20  # levels of blue and orange


def _inflated(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""  # a font


def fact(page, name: str) -> str:
    return page.locator(".fact", has_text=name).locator("dd").inner_text()


def test_a_changed_token_changes_every_step(opened):
    page = opened("what if").page
    before = card(page, "context").locator("td").all_inner_texts()
    page.get_by_label("Feature 1 of journey").fill("-2")
    assert card(page, "x").locator("tbody tr").nth(1).locator("td").all_inner_texts() == [
        "0.55",
        "−2.00",
        "0.66",
    ]
    assert card(page, "context").locator("td").all_inner_texts() != before
    assert fact(page, "Largest difference from the right output") == "0.0000"


@pytest.mark.parametrize(
    ("setting", "value", "symptom", "shown"),
    [
        ("The mask", "none", "depend on a later token", "✗ 15 of 15 pairs"),
        ("The mask", "after softmax", "add up to", "✗ 0."),
        ("The mask", "later", "are NaN", "✗ 4 of 24"),
        ("Softmax runs over", "queries", "depend on a later token", "✗ "),
        ("Heads are split by", "view only", "other tokens' numbers", "✗ "),
        ("Heads are merged by", "view only", "depend on a later token", "✗ "),
        ("The scores are divided by", "none", "difference from the right", "✗ "),
    ],
)
def test_a_mistake_shows_at_once(opened, setting, value, symptom, shown):
    it = opened("what if")
    assert "✗" not in fact(it.page, symptom)
    it.page.get_by_label(setting, exact=True).select_option(value)
    assert fact(it.page, symptom).startswith(shown)
    assert it.page.locator(".listing .changed").count() >= 1
    it.page.get_by_role("button", name="Make all right again").click()
    assert "✗" not in it.page.locator(".symptoms dl").inner_text()
    assert it.complaints == []


def test_the_seed_and_the_probability_of_dropout(opened):
    page = opened("what if").page
    page.get_by_label("Dropout p", exact=True).fill("0.5")
    dropped = card(page, "dropped_weights").locator("td").all_inner_texts()
    weights = card(page, "weights").locator("td").all_inner_texts()
    assert dropped != weights
    page.get_by_label("Seed of dropout").fill("5")
    page.get_by_label("Seed of dropout").press("Enter")
    assert card(page, "dropped_weights").locator("td").all_inner_texts() != dropped
    assert card(page, "weights").locator("td").all_inner_texts() == weights


def test_the_temperature_spreads_the_weights(opened):
    page = opened("what if").page
    in_use = []
    for position in ("-1", "0", "1"):
        page.get_by_label("Temperature", exact=True).fill(position)
        in_use.append(float(fact(page, "Keys that share")))
    assert in_use == sorted(in_use)
    assert in_use[-1] > in_use[0] + 1


def test_a_mask_of_ones_own(opened):
    page = opened("what if").page
    page.get_by_text("The mask, entry by entry").click()
    page.get_by_label("Your sees step").check()
    assert fact(page, "depend on a later token") == "✗ 1 of 15 pairs"
    assert page.get_by_label("The mask", exact=True).input_value() == "own"


def test_the_reader_predicts_first(opened):
    page = opened("what if").page
    look = page.get_by_role("button", name="Look")
    assert look.is_disabled()
    page.get_by_label("on more", exact=True).check()
    look.click()
    assert page.locator(".verdict").inner_text().startswith("No: on fewer.")
    page.get_by_role("button", name="Next question").click()
    page.get_by_label("those of another token").check()
    page.get_by_role("button", name="Look").click()
    assert page.locator(".verdict").inner_text().startswith("Right.")
    assert page.get_by_label("Heads are split by").input_value() == "view only"
    assert "Tokens are torn" in card(page, "queries_by_head").inner_text()
    cell(page, "queries_by_head", 1, 0).hover()
    assert "queries[Your, 2]" in detail(page)  # not one of “journey”


def test_the_tour_shows_every_named_step(opened, files):
    page = opened("tour").page
    content = json.loads(
        re.search(r'id="heedful-data">(.*?)</script>', files["tour"].read_text("utf-8"), re.DOTALL)[
            1
        ]
    )
    shown = sum(
        node["shown"] and node["tensor"] is not None
        for view in content["views"]
        for run in view.get("runs", ())
        for node in run["nodes"]
    )
    assert shown > 100
    assert page.locator(".rung:not(#what-if) .card").count() == shown
    assert page.locator(".card[data-line]").count() > 80
    assert page.evaluate(
        "[...document.querySelectorAll('.card[data-line]')].every(it => document.getElementById(it.dataset.line))"
    )
