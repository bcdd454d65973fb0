"""What the page of a model's heads contains: the statistics, maps and keys of `summarize`, within its room."""

import base64
import json
import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

import heedful
from heedful import Causal, Sinks, attention_of, summarize
from heedful.errors import ArgumentError
from heedful.nn import MultiHeadAttention
from heedful.summaries.request import Cell
from heedful.viewer import statistics_of_page
from heedful.viewer.heads import payload
from heedful.viewer.heads.heads import heads_of
from heedful.viewer.heads.pooling import color_limits, pooled
from heedful.viewer.heads.statistics import distances_between, statistics_of

DTYPES = {"f4": np.float32, "u2": np.uint16, "u1": np.uint8, "i4": np.int32}


def summary_of(T=12, heads=3, seed=0, keys=None, **statistics):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, heads, T, 8, generator=generator)
    key = torch.randn(1, heads, keys or T, 8, generator=generator)
    mask = None if keys else Causal()
    return summarize(query * 2, key, mask, **{**statistics_of_page(T), **statistics})


def model(T=12, seed=0, layers=2, **statistics):
    return {
        f"layers.{i}.attention": summary_of(T, seed=seed + i, **statistics) for i in range(layers)
    }


class Content:
    """The data of a page, as its script reads it."""

    def __init__(self, page):
        html = page.html()
        self.size = len(html.encode())
        text = re.search(r'id="heedful-data">(.*?)</script>', html, re.DOTALL)[1]
        self.view = json.loads(text)["views"][0]
        self.bytes = base64.b64decode(
            re.search(r'id="heedful-arrays">(.*?)</script>', html, re.DOTALL)[1]
        )

    def head(self, layer, head, model=0):
        """Return a head's arrays."""
        packed = self.view["models"][model]["layers"][layer]["heads"][head]
        inflated = zlib.decompress(self.bytes[packed["at"] :][: packed["bytes"]])
        return {name: self.numbers(it, inflated) for name, it in packed["arrays"].items()}

    def numbers(self, it, inflated):
        size = int(np.prod(it["shape"]))
        stored = np.frombuffer(inflated, DTYPES[it["dtype"]], size, it["start"]).astype(np.float64)
        if "scale" in it:
            stored = (stored**2 if it.get("squared") else stored) * it["scale"]
        return torch.from_numpy(stored.reshape(it["shape"]))

    def statistics(self, model=0):
        return {it["name"]: it["values"] for it in self.view["models"][model]["statistics"]}


def test_a_short_text_has_all_weights_exactly():
    layers = model()
    content = Content(heedful.show(layers))
    for i, summary in enumerate(layers.values()):
        for h in range(3):
            head = content.head(i, h)
            assert torch.equal(head["weights"].float(), summary.weights[0, h])
            for name in ("entropy", "largest_weight", "mean_distance", "received_mass"):
                assert torch.equal(head[name].float(), getattr(summary, name)[0, h]), name
    assert content.view["notes"] == []


def test_statistics_are_the_means_of_the_summaries():
    layers = model(regions={"sinks": Sinks(2)})
    found = Content(heedful.show(layers)).statistics()
    for i, summary in enumerate(layers.values()):
        weights = summary.weights[0].double()
        for name, expected in {
            "entropy": summary.entropy[0].double().mean(-1),
            "largest weight": summary.largest_weight[0].double().mean(-1),
            "mean distance": summary.mean_distance[0].double().mean(-1),
            "mass on sinks": weights[..., :2].sum(-1).mean(-1),
            "mass on the first key": weights[..., 0].mean(-1),
            "mass on itself": weights.diagonal(dim1=1, dim2=2).mean(-1),
            "mass on the previous token": weights[:, 1:, :-1].diagonal(dim1=1, dim2=2).mean(-1),
        }.items():
            assert found[name][i] == pytest.approx(expected.tolist(), abs=1e-6), name


def test_induction_is_the_mass_after_an_earlier_same_token():
    labels = ("a", "b", "c", "a", "b", "d")
    summary = summary_of(6)
    found = {it.name: it for it in statistics_of(heads_of(summary, labels, ""))}
    weights = summary.weights[0].double()
    # Query 3 (a) follows its first one by key 1, and query 4 (b) by key 2.
    expected = (weights[:, 3, 1] + weights[:, 4, 2]) / 2
    values = found["mass after an earlier same token"].values[0]
    assert values == pytest.approx(expected.tolist())
    without = {it.name for it in statistics_of(heads_of(summary, "uvwxyz", ""))}
    assert "mass after an earlier same token" not in without


def test_a_statistic_that_a_layer_lacks_is_not_offered():
    layers = {"0": summary_of(), "1": replace(summary_of(), entropy=None)}
    found = Content(heedful.show(layers)).statistics()
    assert "entropy" not in found
    assert "largest weight" in found


def test_long_texts_have_blocks_and_keys_within_their_room(monkeypatch):
    layers = model(600, pool=64, rows=None, top_k=4)
    content = Content(heedful.show(layers))
    summary = layers["layers.1.attention"]
    head = content.head(1, 2)
    assert set(head) >= {"mean", "largest", "top_keys", "top_weights"}
    mean = summary.pooled_mean[0, 2].double()
    assert head["mean"].shape == mean.shape
    assert (head["mean"] - mean).abs().max() <= 0.004 * mean.max() + 1e-9
    assert torch.equal(head["top_keys"].long(), summary.top_keys[0, 2])
    assert torch.equal(head["top_weights"].float(), summary.top_weights[0, 2])
    assert any("8 bits" in note for note in content.view["notes"])

    monkeypatch.setattr(payload, "ROOM", 30_000)
    small = Content(heedful.show(layers))
    assert (
        sum(it["bytes"] for layer in small.view["models"][0]["layers"] for it in layer["heads"])
        <= 33_000
    )
    assert small.size < content.size
    assert max(small.head(0, 0)["mean"].shape) < 64


@pytest.mark.parametrize(("room", "dtype"), [(40_000, "u2"), (22_000, "u1")])
def test_all_weights_are_rounded_before_they_become_blocks(monkeypatch, room, dtype):
    layers = model(100, layers=1)
    monkeypatch.setattr(payload, "ROOM", room)
    content = Content(heedful.show(layers))
    packed = content.view["models"][0]["layers"][0]["heads"][1]["arrays"]
    assert packed["weights"]["dtype"] == dtype
    weights = layers["layers.0.attention"].weights[0, 1].double()
    error = (content.head(0, 1)["weights"] - weights).abs().max() / weights.max()
    assert error <= {"u2": 1 / 65535, "u1": 0.004}[dtype]
    assert any("rounded" in note for note in content.view["notes"])
    top = content.head(0, 1)["top_weights"].float()
    assert torch.equal(top, layers["layers.0.attention"].top_weights[0, 1, :, : top.shape[1]])


def test_blocks_of_blocks_weigh_the_smaller_ones_at_the_edges():
    weights = torch.rand(50, 41)
    first = pooled(weights, weights, Cell(1, 1), (50, 41), 20)
    twice = pooled(*first, (50, 41), 7)
    rows, columns = twice[2]
    block = weights[rows : 2 * rows, 3 * columns : 4 * columns].double()
    assert twice[0][1, 3] == pytest.approx(block.mean().item())
    assert twice[1][1, 3] == block.max().float()
    last = weights[-(50 % rows or rows) :, -(41 % columns or columns) :].double()
    assert twice[0][-1, -1] == pytest.approx(last.mean().item())


def test_a_few_large_blocks_do_not_make_all_others_white():
    maps = torch.full((1, 40, 40), 1e-5)
    maps[0, 0, 0] = 1.0
    assert color_limits(maps, single=False).item() == pytest.approx(1e-5)
    assert color_limits(maps, single=True).item() == 1.0
    assert color_limits(torch.zeros(1, 4, 4), single=False).item() == 1.0


def test_two_models_have_their_mean_total_variation_distance():
    one, other = model(), model(seed=7)
    content = Content(heedful.show(one, beside=other))
    for i, (first, second) in enumerate(zip(one.values(), other.values(), strict=True)):
        expected = (first.weights[0] - second.weights[0]).double().abs().sum(-1).mean(-1) / 2
        assert content.view["distances"]["values"][i] == pytest.approx(expected.tolist(), abs=1e-6)
    assert torch.equal(
        content.head(1, 1, model=1)["weights"].float(), other["layers.1.attention"].weights[0, 1]
    )


def test_the_distance_of_blocks_is_a_lower_bound_and_says_so():
    pair = [heads_of(model(40, seed=seed, rows=None, pool=13), None, "") for seed in (0, 7)]
    exact = [heads_of(model(40, seed=seed), None, "") for seed in (0, 7)]
    blocks, weights = distances_between(*pair), distances_between(*exact)
    assert "larger" in blocks.about
    assert "larger" not in weights.about
    for one, other in zip(blocks.values, weights.values, strict=True):
        assert all(0 < a <= b + 1e-9 for a, b in zip(one, other, strict=True))


def test_what_attention_of_returns_is_shown():
    torch.manual_seed(0)
    module = torch.nn.Sequential(MultiHeadAttention(8, 2), MultiHeadAttention(8, 2)).eval()
    attention = attention_of(module, torch.randn(1, 5, 8), **statistics_of_page(5))
    view = Content(heedful.show(attention, labels="abcde", title="mine")).view
    assert [it["short"] for it in view["models"][0]["layers"]] == ["0", "1"]
    assert view["labels"] == list("abcde")
    assert view["tiles"] is None
    assert repr(heedful.show(attention)) == "Page('Attention', 1 view)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: ((model(),), {"labels": ["a"]}), "12 tokens"),
        (lambda: (({},), {}), "by the names of their layers"),
        (lambda: (({"a": 1},), {}), "int"),
        (lambda: ((model(),), {"beside": model(13)}), "as many layers, heads and tokens"),
        (lambda: ((model(),), {"beside": lambda x: x}), "attention_of"),
        (lambda: ((summarize(*[torch.randn(2, 1, 3, 4)] * 2),), {}), "2 sequences"),
        (lambda: ((summarize(*[torch.randn(1, 1, 3, 4)] * 2, queries=(0, 9)),), {}), "a part"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments, message):
    positional, keywords = arguments()
    with pytest.raises(ArgumentError, match=message):
        heedful.show(*positional, **keywords)


def test_rows_in_another_order_are_not_taken_for_the_map():
    summary = summary_of(rows=list(range(11, -1, -1)))
    assert "weights" not in Content(heedful.show(summary)).head(0, 0)


def test_queries_and_keys_of_different_numbers():
    summary = summary_of(4, keys=9)
    for labels in (None, list("abcd"), list("abcdefghi")):
        view = Content(heedful.show(summary, labels=labels)).view
        assert (
            view["models"][0]["layers"][0]["queries"],
            view["models"][0]["layers"][0]["keys"],
        ) == (4, 9)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_pictures_of_all_heads_and_of_one(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    for name, page in {
        "grid": heedful.show(model(), title="$\\alpha\x00"),
        "one": heedful.show(summary_of(heads=1), labels=["$x", "\n", *"abcdefghij"]),
        "two": heedful.show(model(), beside=model(seed=3)),
        "long": heedful.show(model(100, rows=None, pool=16)),
    }.items():
        file = tmp_path / f"{name}{suffix}"
        page.save(file)
        assert file.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
    no_map = heedful.show(summary_of(rows=None))
    with pytest.raises(ArgumentError, match="no maps"):
        no_map.save(tmp_path / f"none{suffix}")


def test_a_page_of_tiles_may_ask_its_own_server_and_no_other():
    page = heedful.show(model())
    served = replace(page, views=(replace(page.views[0], tiles=True),))
    assert "connect-src 'self'" in served.html()
    assert Content(served).view["tiles"] == "tile"
    assert "connect-src" not in page.html()
