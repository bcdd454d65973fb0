"""The page of a model's heads in a browser: heads, sorting, search, zoom, keyboard, print, and hostile tokens."""

import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
import torch

import heedful
from heedful import Causal, summarize
from heedful.viewer import statistics_of_page
from viewer.browser import HOSTILE, Opened, number, violations, wait_until, width_of

WORDS = tuple(
    re.findall(
        r"\S+",
        "Mary and John went to the store . John gave a drink to Mary . The keys of the house",
    )
)
MARKUP = next(iter(HOSTILE))
LONG = 600


def layers(T, count=3, heads=4, seed=0, **statistics):
    found = {}
    for i in range(count):
        generator = torch.Generator().manual_seed(100 * seed + i)
        query, key = (torch.randn(1, heads, T, 8, generator=generator) for _ in range(2))
        asked = {**statistics_of_page(T), **statistics}
        found[f"model.layers.{i}.attention"] = summarize(2 * query, key, Causal(), **asked)
    return found


SHORT = layers(len(WORDS))
POOLED = layers(LONG, rows=None, pool=60)


def pages():
    cross = summarize(torch.randn(1, 2, 4, 8), torch.randn(1, 2, 7, 8), rows=range(4))
    return {
        "short": heedful.show(SHORT, labels=WORDS, title="A model"),
        "long": heedful.show(POOLED, labels=[f"w{i}" for i in range(LONG)]),
        "beside": heedful.show(SHORT, labels=WORDS, beside=layers(len(WORDS), seed=1)),
        "hostile": heedful.show(
            dict(zip(HOSTILE, layers(len(HOSTILE), 2).values(), strict=False)),
            labels=tuple(HOSTILE),
            title=MARKUP,
        ),
        "cross": heedful.show(cross, labels=list("abcdefg")),
        "no map": heedful.show(layers(9, rows=None)),
        "one token": heedful.show(layers(1)),
    }


NAMES = ("short", "long", "beside", "hostile", "cross", "no map", "one token")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the files of all pages, by name."""
    folder = tmp_path_factory.mktemp("heads")
    written = {}
    for name, page in pages().items():
        written[name] = folder / f"{name}.html"
        page.save(written[name])
        frame = f"<!doctype html><title>notebook</title>{page._repr_html_()}"
        written[f"frame of {name}"] = folder / f"frame of {name}.html"
        written[f"frame of {name}"].write_text(frame, "utf-8")
    return written


@pytest.fixture
def opened(open_address, files):
    """Return a function that opens a page by its name, and waits for its head."""

    def open_page(name: str, **options) -> Opened:
        it = open_address(files[name].as_uri(), **options)
        if not name.startswith("frame"):
            it.page.wait_for_selector("[data-shown]")
        return it

    return open_page


def shown(page) -> str:
    return page.locator(".one-head").get_attribute("data-shown")


def choose(page, layer: int, head: int) -> None:
    page.get_by_role("option", name=f"layers.{layer}.attention, head {head}", exact=False).click()
    page.wait_for_selector(f"[data-shown='{layer}.{head}']")


def names(page) -> list[str]:
    return page.locator(".grid .head").evaluate_all(
        "all => all.map(it => it.getAttribute('aria-label'))"
    )


def reading(page) -> str:
    return page.locator(".reading").first.inner_text()


def status(page) -> str:
    return page.locator(".tools [role=status]").inner_text()


def canvas(page):
    return page.locator(".heatmap canvas").first


@pytest.mark.parametrize("name", NAMES)
def test_a_page_draws_itself_without_error_or_request(opened, name):
    it = opened(name)
    assert it.complaints == []
    assert it.requests == []
    assert it.page.locator(".one-head h2").count() == 1


@pytest.mark.parametrize("name", ["short", "long", "beside", "hostile"])
def test_the_page_works_in_a_sandboxed_frame(opened, name):
    it = opened(f"frame of {name}")
    frame = it.page.frames[1]
    frame.wait_for_selector("[data-shown]")
    before = shown(frame)
    frame.locator(".grid .head").nth(5).click()
    frame.wait_for_selector(f"[data-shown]:not([data-shown='{before}'])")
    assert frame.evaluate("window.origin") == "null"
    assert it.complaints == []
    assert [url for url in it.requests if not url.startswith("about:srcdoc")] == []


@pytest.mark.parametrize(
    ("name", "dark"), [*((name, False) for name in NAMES), ("short", True), ("beside", True)]
)
def test_axe_finds_no_violation(opened, name, dark):
    page = opened(name, dark=dark).page
    if canvas(page).is_visible():
        canvas(page).focus()
    assert violations(page) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_page_is_not_wider_than_its_window(opened, name):
    assert width_of(opened(name, width=360).page) <= 360


def test_a_chosen_head_shows_its_numbers(opened):
    page = opened("short").page
    choose(page, 1, 2)
    summary = SHORT["model.layers.1.attention"]
    facts = dict(
        zip(
            page.locator(".one-head > .facts dt").all_inner_texts(),
            map(number, page.locator(".one-head > .facts dd").all_inner_texts()),
            strict=True,
        )
    )
    assert facts["entropy"] == pytest.approx(summary.entropy[0, 2].mean().item(), abs=6e-5)
    assert facts["largest weight"] == pytest.approx(
        summary.largest_weight[0, 2].mean().item(), abs=6e-5
    )
    assert facts["mean distance"] == pytest.approx(
        summary.mean_distance[0, 2].mean().item(), abs=6e-5
    )


def test_a_token_shows_its_keys_with_their_weights(opened):
    page = opened("short").page
    choose(page, 2, 1)
    page.get_by_role("listbox", name="The text").get_by_role("option", name="drink").click()
    assert "“drink” (query 11) attends to" in page.locator(".query h3").inner_text()
    rows = [row.split() for row in page.locator(".query tbody tr").all_inner_texts()]
    summary = SHORT["model.layers.2.attention"]
    keys, weights = summary.top_keys[0, 1, 11].tolist(), summary.top_weights[0, 1, 11].tolist()
    assert [int(row[1]) for row in rows] == keys
    assert [row[0] for row in rows] == [WORDS[key] for key in keys]
    assert [number(row[2]) for row in rows] == pytest.approx(weights, abs=6e-5)
    entropy = number(page.locator(".query .facts dd").first.inner_text())
    assert entropy == pytest.approx(summary.entropy[0, 1, 11].item(), abs=6e-5)


def test_lines_lead_to_the_keys(opened):
    page = opened("short").page
    page.locator(".lines text", has_text="store").first.click()
    query = WORDS.index("store")
    weights = SHORT["model.layers.0.attention"].weights[0, 0, query]
    told = page.locator(".lines .line.chosen title").evaluate_all(
        "all => all.map(it => it.textContent)"
    )
    found = {text.split(" → ")[1] for text in told}
    expected = {
        f"{WORDS[key]}: {weights[key]:.4f}"
        for key in (weights >= 0.02).nonzero().flatten().tolist()
    }
    assert found <= expected
    assert len(told) == min(8, len(expected))


def test_heads_are_sorted_by_every_statistic_and_filtered_by_layer(opened):
    page = opened("short").page
    sort = page.get_by_label("Sort by")
    options = sort.locator("option").all_inner_texts()
    assert options[0] == "layer and head"
    for option in options[1:]:
        sort.select_option(label=option)
        values = [number(name.rsplit(" ", 1)[1]) for name in names(page)]
        assert len(values) == 12
        assert values == sorted(values, reverse=True), option
    page.get_by_label("Order", exact=True).select_option(label="lowest first")
    values = [number(name.rsplit(" ", 1)[1]) for name in names(page)]
    assert values == sorted(values)
    page.get_by_label("Layer", exact=True).select_option(label="1")
    assert len(names(page)) == 4
    assert all("layers.1" in name for name in names(page))


def test_the_first_of_the_sorted_heads_is_the_right_one(opened):
    page = opened("short").page
    page.get_by_label("Sort by").select_option(label="mass on the first key")
    masses = torch.stack(
        [it.received_mass[0, :, 0] / it.received_mass[0].sum(-1) for it in SHORT.values()]
    )
    layer, head = divmod(masses.flatten().argmax().item(), 4)
    assert f"layers.{layer}.attention, head {head}, mass on the first key" in names(page)[0]


def test_a_search_leads_from_token_to_token(opened):
    page = opened("short").page
    field = page.get_by_role("searchbox")
    field.fill("the")
    assert "3 found" in page.locator(".search").inner_text()
    assert page.locator(".tokens-of-text .found").all_inner_texts() == ["the", "The", "the"]
    visited = []
    for _ in range(3):
        field.press("Enter")
        visited.append(page.locator(".query h3").inner_text())
    places = {int(re.search(r"query (\d+)", text)[1]) for text in visited}
    assert places == {i for i, word in enumerate(WORDS) if word.lower() == "the"}
    page.get_by_role("button", name="Previous match").click()
    field.fill("nowhere")
    assert "0 found" in page.locator(".search").inner_text()


def test_the_text_scrolls_to_the_chosen_token_and_turns_its_pages(opened):
    page = opened("long").page
    field = page.get_by_role("searchbox")
    for token in (510, 3, 599):
        field.fill(f"w{token}")
        field.press("Enter")
        chosen = page.locator(".tokens-of-text [aria-selected=true]")
        assert chosen.inner_text() == f"w{token}"
        inside = """it => {
            const [list, own] = [it.closest(".tokens-of-text"), it].map(each => each.getBoundingClientRect());
            return own.top >= list.top && own.bottom <= list.bottom;
        }"""
        assert chosen.evaluate(inside)
    assert page.evaluate("window.scrollY") == 0
    page.get_by_role("button", name="Earlier tokens").click()
    assert page.locator(".tokens-of-text [role=option]").first.inner_text() == "w0"


def test_the_keyboard_alone_reads_every_weight_and_chooses_heads(opened):
    page = opened("short").page
    page.locator(".grid .head").first.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    page.wait_for_selector("[data-shown='1.1']")
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    page.keyboard.press("PageUp")
    page.keyboard.press("Home")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert reading(page).startswith("“John” (query 2) → “and” (key 1): ") is True
    weight = SHORT["model.layers.1.attention"].weights[0, 1, 2, 1].item()
    assert number(reading(page).rsplit(" ", 1)[1]) == pytest.approx(weight, abs=6e-5)
    assert page.locator(".reading").first.get_attribute("aria-live") == "polite"
    page.keyboard.press("Enter")
    assert "“John” (query 2)" in page.locator(".query h3").inner_text()
    page.keyboard.press("Tab")
    for _ in range(4):
        if page.evaluate("document.activeElement.closest('.tokens-of-text') !== null"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert "“went” (query 3)" in page.locator(".query h3").inner_text()


def test_zoom_by_keys_buttons_wheel_and_dragging(opened):
    page = opened("short").page
    assert status(page) == "a cell for each weight"
    canvas(page).focus()
    page.keyboard.press("+")
    assert status(page).startswith("queries 5 – 14, keys 0 – 9; ")
    assert page.locator(".axis.rows span").count() == 10
    page.keyboard.press("0")
    assert status(page) == "a cell for each weight"
    page.get_by_role("button", name="Zoom in").click()
    assert status(page).startswith("queries ")
    page.get_by_role("button", name="Show the whole map").click()
    assert status(page) == "a cell for each weight"
    box = canvas(page).bounding_box()
    cell = box["width"] / len(WORDS)
    page.mouse.move(box["x"] + 4.5 * cell, box["y"] + 5.5 * cell)
    page.mouse.down()
    page.mouse.move(box["x"] + 9.5 * cell, box["y"] + 11.5 * cell, steps=4)
    page.mouse.up()
    assert status(page).startswith("queries 5 – 11, keys 4 – 9; ")
    page.evaluate("document.activeElement.blur()")
    page.mouse.wheel(0, 100)  # the map has no focus: the page scrolls instead
    assert status(page).startswith("queries 5 – 11, keys 4 – 9; ")
    canvas(page).focus()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.wheel(0, 100)
    wait_until(page, lambda: "keys 4 – 9" not in status(page))


def test_pointing_at_a_block_reads_its_mean_and_maximum(opened):
    page = opened("long").page
    assert "blocks of 10 × 10 weights" in page.locator(".tools [role=status]").inner_text()
    canvas(page).focus()
    for key in ("PageUp", "Home", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    text = reading(page)
    assert text.startswith("queries 20 – 29 w20 → keys 10 – 19 w10: mean about ")
    mean, largest = map(number, re.search(r"mean about (\S+), largest about (\S+)", text).groups())
    summary = POOLED["model.layers.0.attention"]
    assert mean == pytest.approx(summary.pooled_mean[0, 0, 2, 1].item(), abs=0.005)
    assert largest == pytest.approx(summary.pooled_max[0, 0, 2, 1].item(), abs=0.005)
    assert "8 bits" in page.locator(".notes").inner_text()
    page.get_by_label("Cells show").select_option(label="the largest of each block")


def test_maps_of_blocks_are_not_white(opened):
    page = opened("long").page
    levels = page.evaluate(
        """() => {
            const canvas = document.querySelector(".heatmap canvas");
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            const at = (row, column) => data[4 * (row * canvas.width + column)];
            const red = [];
            for (let i = 0; i < canvas.height; i++) for (let j = 0; j < i; j++) red.push(at(i, j));
            red.sort((a, b) => a - b);
            return [red[Math.floor(red.length / 2)], red[0]];
        }"""
    )
    assert levels[0] < 200  # the middle block below the diagonal has a color


def test_two_models_stand_side_by_side(opened):
    page = opened("beside").page
    titles = page.locator(".maps figcaption").all_inner_texts()
    assert titles == ["The first", "The second", "The first less the second"]
    assert page.get_by_label("Sort by").input_value() == "1"
    assert "distance between the two" in names(page)[0]
    choose(page, 2, 3)
    page.locator(".heatmap canvas").nth(1).focus()
    page.keyboard.press("End")
    page.keyboard.press("Home")
    values = [number(it.rsplit(" ", 1)[1]) for it in page.locator(".reading").all_inner_texts()]
    assert values[0] - values[1] == pytest.approx(values[2], abs=1.1e-4)
    assert page.locator(".query table").count() == 2


def test_the_text_is_colored_by_any_number(opened):
    page = opened("short").page
    menu = page.get_by_label("Color the tokens by")
    options = menu.locator("option").all_inner_texts()
    assert options == [
        "the weight that the query gives them",
        "their entropy",
        "their largest weight",
        "their mean distance",
        "their received mass",
    ]
    token = page.locator(".tokens-of-text [role=option]").nth(3)
    for option, name in zip(
        options[1:], ("entropy", "largest_weight", "mean_distance", "received_mass"), strict=True
    ):
        menu.select_option(label=option)
        value = getattr(SHORT["model.layers.0.attention"], name)[0, 0, 3].item()
        assert number(token.get_attribute("title").split(": ")[1]) == pytest.approx(value, abs=6e-5)


def test_hostile_tokens_are_shown_as_text(opened):
    it = opened("hostile")
    options = it.page.locator(".tokens-of-text [role=option]")
    assert options.all_text_contents() == list(HOSTILE.values())
    for i in range(len(HOSTILE)):
        options.nth(i).click()
    canvas(it.page).focus()
    it.page.keyboard.press("ArrowUp")
    it.page.get_by_role("searchbox").fill("alert")
    assert "3 found" in it.page.locator(".search").inner_text()
    assert len(reading(it.page)) < 200
    assert it.page.locator("h1").inner_text() == MARKUP
    assert it.page.locator("img, .one-head script, svg[onload]").count() == 0
    assert it.complaints == []
    assert it.requests == []


def test_a_printed_page_is_light_and_keeps_maps_and_lines(opened):
    page = opened("short", dark=True).page
    corner = """() => [...document.querySelector(".heatmap canvas").getContext("2d").getImageData(5, 0, 1, 1).data]"""
    assert page.evaluate(corner)[0] < 60  # a hidden weight, in the dark
    page.emulate_media(media="print")
    wait_until(page, lambda: page.evaluate(corner)[0] > 200)
    assert not page.locator(".search").is_visible()
    for name in (".grid", ".tokens-of-text"):
        assert page.locator(name).evaluate("it => getComputedStyle(it).overflowY") == "visible"
    opacities = page.locator(".lines .line").evaluate_all(
        "all => all.map(it => it.getAttribute('stroke-opacity'))"
    )
    assert min(map(float, opacities)) >= 0.15


def tile(url: str) -> tuple[bytes, dict[str, str]]:
    """Return what the server answers: exact blocks of the last head's weights."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    (a, b), (c, d) = (tuple(map(int, query[name].split(":"))) for name in ("rows", "columns"))
    weights = layers(LONG, rows=range(LONG), pool=None)[
        f"model.layers.{query['layer']}.attention"
    ].weights
    part, cells = weights[0, int(query["head"]), a:b, c:d], int(query["cells"])
    steps = [-(-length // cells) for length in part.shape]
    blocks = [row.split(steps[1], dim=1) for row in part.split(steps[0], dim=0)]
    numbers = [
        [it.mean() for row in blocks for it in row],
        [it.max() for row in blocks for it in row],
    ]
    headers = {"X-Rows": str(len(blocks)), "X-Columns": str(len(blocks[0]))}
    return np.asarray(numbers, dtype="<f4").tobytes(), headers


def test_a_served_page_zooms_down_to_single_tokens(open_address):
    page = heedful.show(POOLED, labels=[f"w{i}" for i in range(LONG)])
    served = replace(page, views=(replace(page.views[0], tiles=True),)).html()
    asked = []

    def answer(route) -> None:
        url = route.request.url
        asked.append(url)
        if "/tile?" not in url:
            route.fulfill(body=served, content_type="text/html")
            return
        body, headers = tile(url)
        route.fulfill(body=body, headers=headers)

    it = open_address("http://127.0.0.1:8765/", answer=answer)
    tab = it.page
    tab.wait_for_selector("[data-shown]")
    tab.wait_for_selector(".query tbody tr")  # the keys of the query, from the server
    summary = POOLED["model.layers.0.attention"]
    keys = [int(row.split()[1]) for row in tab.locator(".query tbody tr").all_inner_texts()]
    assert keys == summary.top_keys[0, 0, LONG // 2].tolist()
    canvas(tab).focus()
    for key in ("PageUp", "Home", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
        tab.keyboard.press(key)
    for _ in range(6):
        tab.keyboard.press("+")
    wait_until(tab, lambda: status(tab).endswith("a cell for each weight"))
    tab.keyboard.press("ArrowRight")
    found = re.match(r"“w(\d+)” \(query (\d+)\) → “w(\d+)” \(key (\d+)\): (\S+)", reading(tab))
    query, key = int(found[2]), int(found[4])
    assert (int(found[1]), int(found[3])) == (query, key)
    weights = layers(LONG, rows=range(LONG), pool=None)["model.layers.0.attention"].weights
    assert number(found[5]) == pytest.approx(weights[0, 0, query, key].item(), abs=1e-4)
    assert tab.locator(".axis.rows span").first.inner_text().startswith("w") is True
    assert it.complaints == []
    assert all(url.startswith("http://127.0.0.1:8765/") for url in asked)


@pytest.mark.slow
def test_a_page_of_30_layers_at_16384_tokens_is_small_and_paints_soon(open_address, tmp_path):
    T, heads = 16384, 9
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, T, 16, generator=generator) for _ in range(2))
    summary = summarize(2 * query, key, Causal(), **statistics_of_page(T))
    page = heedful.show({f"layers.{i}.self_attn": summary for i in range(30)}, labels=["word"] * T)
    file = tmp_path / "long.html"
    page.save(file)
    assert file.stat().st_size <= 15_000_000
    it = open_address(file.as_uri())
    it.page.wait_for_selector("[data-shown]")
    timings = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    assert it.page.evaluate(timings) < 3000
    assert it.complaints == []
    assert it.page.locator(".grid .head").count() == 270
