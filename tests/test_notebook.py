"""What a notebook shows: short texts, HTML without scripts, and heads to pick where nothing may run."""

from html.parser import HTMLParser

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import heedful
from heedful import (
    Causal,
    Dense,
    Documents,
    KeyRanges,
    Padding,
    Prefix,
    Sinks,
    Window,
    accelerate,
    attention,
    attention_of,
    convert,
    explain,
    record,
    summarize,
)
from heedful.nn import KVCache, MultiHeadAttention
from heedful.tables import table
from heedful.textbook import MultiHeadAttention as Textbook
from viewer.browser import chromium

WORDS = ("Your", "journey", "starts", "with", "one", "step")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=http://x.invalid onerror=alert(2)>',
    "\x00\x1b[2J\n",
    "\u202eright to left\u2066",
    "👩‍👩‍👧",
    "x" * 100_000,
)
VOID = {"br", "hr", "img", "input", "meta"}


class Parsed(HTMLParser):
    """Collects tags and texts, and checks that elements are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data + " "

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)


def recorded():
    torch.manual_seed(0)
    return record(MultiHeadAttention(8, 4), torch.randn(1, 6, 8))


def certificate():
    return convert(
        Textbook(8, 8, context_length=6, num_heads=2), MultiHeadAttention(8, 2, bias=True)
    )[1]


def report():
    query = torch.randn(1, 4, 70, 8)
    with accelerate() as handle:
        F.scaled_dot_product_attention(query, query, query)
        F.scaled_dot_product_attention(query[0], query[0], query[0], is_causal=True)
        return handle.report()


QUERY = torch.randn(1, 4, 64, 16)
LONG = torch.arange(5000)
SHOWN = {
    "trace": recorded,
    "step": lambda: recorded()["weights"],
    "summary of a value": lambda: record(torch.exp, torch.randn(2000, 2000))["exp"].value,
    "plan": lambda: explain(QUERY, QUERY, QUERY, Causal() & Window(8)),
    "certificate": certificate,
    "report": report,
    "no calls": lambda: type(report())(()),
    "summary": lambda: summarize(QUERY, QUERY, Causal(), pool=8, regions={"<first>": Sinks(1)}),
    "rows": lambda: summarize(QUERY, QUERY, rows=range(64)),
    "model": lambda: attention_of(nn.Sequential(MultiHeadAttention(8, 2)), torch.randn(1, 9, 8)),
    "causal": Causal,
    "window": lambda: Sinks(4) | Window(256),
    "padding": lambda: Causal() & Padding(torch.tensor([9, 6, 3])),
    "documents": lambda: Documents(LONG // 700) & Causal(),
    "prefix": lambda: Prefix(3),
    "dense": lambda: Dense(torch.rand(2, 8, 5, 7) > 0.5),
    "row of a dense": lambda: Dense(torch.rand(1, 7) > 0.5),
    "key ranges": lambda: KeyRanges(Window(3).intervals(20)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_html_is_whole_and_has_no_script_and_asks_for_nothing(name):
    page = SHOWN[name]()._repr_html_()
    parsed = Parsed(page)
    assert parsed.count("script") == 0
    assert not any(set(attributes) & {"src", "href", "onclick"} for _, attributes in parsed.tags)
    assert parsed.text.strip()
    assert len(page) < 3_000_000


@pytest.mark.parametrize(
    "name", [name for name in SHOWN if name not in ("padding", "documents", "prefix")]
)
def test_the_text_is_short(name):
    assert len(repr(SHOWN[name]())) < 600
    assert "tensor(" not in repr(SHOWN[name]())


def test_results_and_caches_tell_sizes_and_no_entries():
    query = torch.randn(1, 2, 9, 4)
    result = attention(query, query, query, return_lse=True)
    assert repr(result) == "AttentionResult(output: 1 × 2 × 9 × 4 float32, lse: 1 × 2 × 9 float32)"
    with_mass = attention(query, query, query, return_received_mass=True)
    assert repr(with_mass).endswith("received_mass: 1 × 2 × 9 float32)")
    cache = KVCache.empty(2, 4, capacity=128, head_dim=16, dtype=torch.bfloat16)
    assert repr(cache) == "KVCache(0 of 128 tokens: B=2, Hkv=4, D=16, bfloat16 on cpu, 0.0625 MiB)"


def test_the_numbers_are_those_of_the_objects():
    plan = SHOWN["plan"]()
    text = Parsed(plan._repr_html_()).text
    assert plan.kernel in text
    assert "11.8% of the scores" in text
    proof = certificate()
    text = Parsed(proof._repr_html_()).text
    assert "✓" in text
    assert f"{len(proof.carried)} parameters" in text
    assert all(origin in text for origin, _ in proof.carried)
    assert "served" in Parsed(report()._repr_html_()).text
    summary = SHOWN["summary"]()
    parsed = Parsed(summary._repr_html_())
    assert f"{summary.entropy[:, 2].mean():.3g}" in parsed.text
    assert "<first>" in parsed.text


def test_a_wrong_certificate_is_marked():
    from dataclasses import replace

    assert "✗" in replace(certificate(), difference=1.0)._repr_html_()


# --- a trace ------------------------------------------------------------------------------------------


def test_the_weights_are_open_with_a_head_to_pick_and_the_rest_is_folded():
    trace = recorded().with_labels(WORDS)
    parsed = Parsed(trace._repr_html_())
    folds = [attributes for tag, attributes in parsed.tags if tag == "details"]
    heads = [it for it in folds if "name" in it]
    assert sum("open" in it for it in folds if "name" not in it) == 1
    groups = [it["name"] for it in heads]
    assert {groups.count(name) for name in groups} <= {
        4,
        6,
    }  # of heads, and of tokens before the split
    assert len({it["name"] for it in heads}) > 5  # each step has a group of its own
    for word in WORDS:
        assert f" {word} " in parsed.text
    assert "head 3" in parsed.text
    assert "computed beside by the reference" in parsed.text
    assert "differs from the reference's by at most" in parsed.text
    assert all(step.name in parsed.text for step in trace)


def test_labels_stand_at_queries_and_keys():
    text = Parsed(recorded().with_labels(WORDS)["weights"]._repr_html_()).text
    assert text.count("journey") == 8  # a row and a column in each of four heads
    queries = Parsed(recorded().with_labels(WORDS)["queries"]._repr_html_()).text
    assert queries.count("journey") == 1


def test_hostile_labels_are_text():
    parsed = Parsed(recorded().with_labels(HOSTILE)._repr_html_())
    assert parsed.count("script") == parsed.count("img") == 0
    assert "\x1b" not in parsed.text
    assert len(parsed.text) < 100_000


def test_a_large_trace_stays_small_and_says_what_it_leaves_out():
    model = nn.Sequential(*(MultiHeadAttention(64, 8) for _ in range(6)))
    trace = record(model, torch.randn(1, 80, 64))
    page = trace._repr_html_()
    assert len(page) < 4_000_000
    assert "values are not drawn here" in page
    folded = [text for text in page.split("<summary>") if text.startswith("<b>")]
    assert len(folded) == 6


def test_the_labels_of_a_trace_are_those_of_its_page():
    page = heedful.show(recorded().with_labels(WORDS)).html()
    assert "journey" in page


@pytest.mark.parametrize("sandbox", [None, "", "allow-scripts"])
def test_one_head_is_open_at_a_time_where_no_script_runs(tmp_path, sandbox):
    drawn = recorded().with_labels(WORDS)["weights"]._repr_html_()
    if sandbox is not None:
        escaped = drawn.replace("&", "&amp;").replace('"', "&quot;")
        drawn = f'<iframe sandbox="{sandbox}" srcdoc="{escaped}" width="900" height="600"></iframe>'
    (tmp_path / "cell.html").write_text(f"<!doctype html><title>cell</title>{drawn}", "utf-8")
    with chromium() as browser:
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto((tmp_path / "cell.html").as_uri())
        frame = page.frames[-1]
        heads = frame.locator("details[name]")
        assert heads.count() == 4
        tables = heads.locator("table")
        assert [tables.nth(i).is_visible() for i in range(4)] == [True, False, False, False]
        frame.get_by_text("head 2", exact=True).click()
        assert [tables.nth(i).is_visible() for i in range(4)] == [False, False, True, False]


# --- masks --------------------------------------------------------------------------------------------


def squares(page):
    """Return the number of dark squares of each picture."""
    return [
        svg.partition("#08306b")[2].partition("/>")[0].count("M") for svg in page.split("<svg")[1:]
    ]


def test_the_picture_of_a_mask_has_a_dark_square_for_each_key_that_a_query_sees():
    mask = Causal() & Window(5)
    assert squares(mask._repr_html_()) == [int(mask.dense(12).sum())]
    padding = Causal() & Padding(torch.tensor([12, 4]))
    assert squares(padding._repr_html_()) == padding.dense(12).sum(dim=(1, 2, 3)).tolist()
    dense = torch.rand(5, 7) > 0.5
    assert squares(Dense(dense)._repr_html_()) == [int(dense.sum())]


def test_a_long_mask_is_sampled():
    mask = Sinks(4) | Window(256)
    step = -(-512 // 48)
    expected = int(mask.dense(512)[0, 0, ::step, ::step].sum())
    assert squares(mask._repr_html_()) == [expected]
    assert f"one of {step} queries" in mask._repr_html_()


def test_a_table_escapes_and_aligns():
    drawn = table([("a<b", "1.5"), ("c", "2")], header=("name", "<number>"))
    parsed = Parsed(drawn)
    assert "a<b" in parsed.text
    assert "<number>" in parsed.text
    styles = [attributes["style"] for tag, attributes in parsed.tags if tag == "td"]
    assert ["right" in style for style in styles] == [False, True, False, True]
