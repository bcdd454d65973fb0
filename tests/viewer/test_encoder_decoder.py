"""Encoder-decoders: attention of the encoder, of the decoder and between the two, with the tokens of both texts."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import heedful
from heedful import ArgumentError, attention_of
from heedful.viewer import statistics_of_page
from heedful.viewer.heads import payload
from heedful.viewer.heads.kinds import CROSS, DECODER, ENCODER, kind_of
from heedful.viewer.models import command
from heedful.viewer.models.command import Chosen, Read, page_of, run, size_to_keep
from heedful.viewer.models.files import find_model
from heedful.viewer.models.kept_attention import KeptAttention
from heedful.viewer.models.text_model import load_model
from viewer.browser import number, violations
from viewer.test_model_command import error_of, save, show

transformers = pytest.importorskip(
    "transformers", reason="transformers is missing; install it with: pip install -e '.[models]'"
)
SOURCE, TARGET = "to be or not to be", "that is the question: to be"
KINDS = [ENCODER, DECODER, CROSS]
ALL = Chosen(None, None)


def t5():
    """Return a small T5, which adds a bias for each distance, with more layers in its decoder."""
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_decoder_layers": 3}
    starts = {"decoder_start_token_id": 0, "pad_token_id": 0}
    config = transformers.T5Config(num_heads=2, vocab_size=300, **sizes, **starts)
    return transformers.T5ForConditionalGeneration(config)


def bart(family="Bart"):
    """Return a small BART, or a model that is built like it, with more heads in its decoder."""
    config = getattr(transformers, f"{family}Config")(
        vocab_size=300,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=64,
        decoder_start_token_id=2,
        pad_token_id=1,
        eos_token_id=3,
        init_std=0.5,
    )
    return getattr(transformers, "MarianMTModel" if family == "Marian" else f"{family}Model")(
        config
    )


BUILDERS = {
    "T5": t5,
    "BART": lambda: transformers.BartForConditionalGeneration(bart().config),
    "Marian": lambda: bart("Marian"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of each model, in float64, by name."""
    torch.manual_seed(0)
    return {
        name: save(build().double(), tmp_path_factory.mktemp(name))
        for name, build in BUILDERS.items()
    }


@pytest.fixture(params=BUILDERS)
def model(request, folders):
    return load_model(find_model(str(folders[request.param])), request.param)


def read_by(model, source=SOURCE, target=TARGET):
    return Read(model.encode(source), model.decoder.encode(target))


def views_of(page):
    """Return what the script of a page gets, for each heading."""
    html = page.html()
    data = re.search(r'id="heedful-data">(.*?)</script>', html, re.DOTALL)[1]
    headings = re.findall(r"<h2>(.*?)</h2>", html)
    return dict(zip(headings, json.loads(data)["views"], strict=True))


def eager(model, read):
    """Return the weights that transformers computes itself, by kind."""
    module = model.module()
    module.set_attn_implementation("eager")
    with torch.no_grad():
        found = module(
            input_ids=torch.tensor([read.text]),
            decoder_input_ids=torch.tensor([read.of_decoder]),
            output_attentions=True,
        )
    return dict(
        zip(
            KINDS,
            (found.encoder_attentions, found.decoder_attentions, found.cross_attentions),
            strict=True,
        )
    )


def test_the_weights_are_the_models_own(model):
    read = read_by(model)
    assert len(read.text) != len(read.of_decoder)
    layers = run(model, read, ALL).layers
    for kind, expected in eager(model, read).items():
        found = [it for name, it in layers.items() if kind_of(name) == kind]
        assert len(found) == len(expected) > 0
        for summary, weights in zip(found, expected, strict=True):
            assert summary.weights.dtype == torch.float64
            torch.testing.assert_close(summary.weights, weights, atol=1e-12, rtol=1e-10)


def test_the_page_has_each_kind_with_its_own_tokens(model):
    read = read_by(model)
    views = views_of(page_of(model, read, run(model, read, ALL)))
    assert list(views) == KINDS
    source, target = model.texts(read.text), model.texts(read.of_decoder)
    assert "".join(source) == SOURCE
    assert "".join(target[1:]) == TARGET  # after the token that the decoder starts with
    texts = {ENCODER: (source, None), DECODER: (target, None), CROSS: (target, source)}
    for kind, (queries, keys) in texts.items():
        assert (views[kind]["labels"], views[kind]["keyLabels"]) == (queries, keys)
        for layer in views[kind]["models"][0]["layers"]:
            assert (layer["queries"], layer["keys"]) == (len(queries), len(keys or queries))


def test_cross_attention_has_no_numbers_about_places(model):
    read = read_by(model, "to be or not", "to be or not")
    read = Read(read.text, read.of_decoder[: len(read.text)])
    assert len(read.text) == len(read.of_decoder)
    views = views_of(page_of(model, read, run(model, read, ALL)))
    found = {
        kind: {it["name"] for it in view["models"][0]["statistics"]} for kind, view in views.items()
    }
    about_places = {"mean distance", "mass on itself", "mass on the previous token"}
    assert about_places <= found[ENCODER] & found[DECODER]
    assert found[CROSS] == {"entropy", "largest weight", "mass on the first key"}
    (head, *_) = views[CROSS]["models"][0]["layers"][0]["heads"]
    assert "mean_distance" not in head["arrays"]


def test_without_a_target_the_decoder_reads_what_the_model_writes(folders):
    module = transformers.BartForConditionalGeneration.from_pretrained(folders["BART"]).eval()
    model = load_model(find_model(str(folders["BART"])), "BART")
    ids = model.encode(SOURCE)
    written = torch.tensor([[2]])
    with torch.no_grad():
        while written.shape[1] <= 64 and written[0, -1] != 3:
            logits = module(input_ids=torch.tensor([ids]), decoder_input_ids=written).logits
            written = torch.cat([written, logits[:, -1:].argmax(dim=-1)], dim=1)
    assert model.decoder.generate(ids) == written[0, :-1].tolist()


def test_the_command_says_whose_text_the_decoder_reads(folders, tmp_path):
    out = tmp_path / "page.html"
    for folder in folders.values():
        result = show("--model", folder, "--text", SOURCE, "--out", out)
        assert result.exit_code == 0, result.output
        assert "--target-text sets another" in result.stderr
        result = show("--model", folder, "--text", SOURCE, "--target-text", TARGET, "--out", out)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        assert all(f"<h2>{kind}</h2>" in out.read_text() for kind in KINDS)


def test_the_end_of_a_target_is_not_read(folders, monkeypatch):
    """A model predicts the mark of the end; its decoder reads it no more."""
    model = load_model(find_model(str(folders["BART"])), "BART")
    plain = model.decoder.encode(TARGET)
    tokenizer_class = transformers.PreTrainedTokenizerFast
    call = tokenizer_class.__call__

    def with_end(self, *arguments, **options):
        found = call(self, *arguments, **options)
        return {"input_ids": [*found["input_ids"], 3]}

    monkeypatch.setattr(tokenizer_class, "__call__", with_end)
    monkeypatch.setattr(tokenizer_class, "all_special_ids", [3])
    assert model.decoder.encode(TARGET) == plain


def test_layers_are_counted_in_the_encoder_and_the_decoder(folders):
    model = load_model(find_model(str(folders["T5"])), "T5")
    read = read_by(model)
    assert list(run(model, read, Chosen([1, 2], [0])).layers) == [
        "encoder.block.1.layer.0.SelfAttention",
        "decoder.block.1.layer.0.SelfAttention",
        "decoder.block.1.layer.1.EncDecAttention",
        "decoder.block.2.layer.0.SelfAttention",
        "decoder.block.2.layer.1.EncDecAttention",
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--layers", "3"], "indices from 0 to 1, of layers of the encoder and of the decoder"),
        (["--target-text", " "], "received an empty one"),
        (["--target-text", "zebra " * 40], "at most 64 tokens"),
    ],
)
def test_errors_name_the_option(folders, arguments, reason):
    arguments = arguments if "--target-text" in arguments else [*arguments, "--target-text", TARGET]
    assert reason in error_of("--model", folders["BART"], "--text", SOURCE, *arguments)


def test_a_served_page_asks_for_the_layers_own_tiles(model):
    read = read_by(model)
    size = size_to_keep(model, read, ALL)
    with KeptAttention(size) as kept:
        attention = run(model, read, ALL, kept)
        stored = kept._file.seek(0, os.SEEK_END)
        assert stored - size < 64 * 5 * len(kept.sizes)  # the alignment, and masks
        views = views_of(command._with_tiles(page_of(model, read, attention)))
        weights = eager(model, read)
        for kind, view in views.items():
            assert view["tiles"] == "tile"
            for layer, expected in zip(view["models"][0]["layers"], weights[kind], strict=True):
                rows, columns = (0, layer["queries"]), (0, layer["keys"])
                tile = kept.tile(
                    layer=layer["place"], head=1, rows=rows, columns=columns, cells=100
                )
                torch.testing.assert_close(tile.mean.double(), expected[0, 1], atol=1e-6, rtol=1e-5)


def test_all_kinds_share_the_room_of_a_page(model, monkeypatch):
    monkeypatch.setattr(payload, "ROOM", 20_000)
    read = read_by(model, SOURCE * 3, TARGET * 3)
    views = views_of(page_of(model, read, run(model, read, ALL)))
    layers = [layer for view in views.values() for layer in view["models"][0]["layers"]]
    assert sum(head["bytes"] for layer in layers for head in layer["heads"]) <= 20_000
    assert all(view["notes"] for view in views.values())  # it says that they are rounded


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_has_all_kinds(model, tmp_path, suffix):
    pytest.importorskip("matplotlib", reason="install it with: pip install 'heedful[test]'")
    read, out = read_by(model), tmp_path / f"heads.{suffix}"
    page_of(model, read, run(model, read, ALL)).save(out)
    assert out.stat().st_size > 1000
    if suffix == "svg":
        assert all(f"<!-- {kind} -->" in out.read_text() for kind in KINDS)


def test_kinds_follow_from_names():
    names = {
        "model.encoder.layers.0.self_attn": ENCODER,
        "encoder.block.0.layer.0.SelfAttention": ENCODER,
        "decoder.block.0.layer.0.SelfAttention": DECODER,
        "decoder.block.0.layer.1.EncDecAttention": CROSS,
        "model.decoder.layers.3.encoder_attn (2)": CROSS,
        "decoder.layers.0.multihead_attn": CROSS,
        "decoder.layers.0.self_attn": DECODER,
        "decoder.bert.encoder.layer.1.attention.self": DECODER,
        "decoder.bert.encoder.layer.1.crossattention.self": CROSS,
        "model.layers.0.self_attn": None,
    }
    assert {name: kind_of(name) for name in names} == names


def test_pytorchs_own_transformer():
    torch.manual_seed(0)
    options = {"dim_feedforward": 8, "dropout": 0.0, "batch_first": True}
    module = nn.Transformer(8, 2, num_encoder_layers=1, num_decoder_layers=1, **options).train()
    inputs = {"src": torch.randn(1, 4, 8), "tgt": torch.randn(1, 3, 8)}
    attention = attention_of(module, inputs, **statistics_of_page(4))
    views = views_of(heedful.show(attention, labels=list("abcd"), target_labels=list("xyz")))
    assert list(views) == KINDS
    assert (views[CROSS]["labels"], views[CROSS]["keyLabels"]) == (list("xyz"), list("abcd"))


def test_errors_of_labels():
    query, key = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    cross = heedful.summarize(query, key)
    layers = {"decoder.0.cross_attn": cross}
    heedful.show(layers, labels=list("abcde"), target_labels=list("xyz"))
    for arguments, message in (
        ({"subject": layers, "labels": list("abc")}, "3 queries and 3 keys, as many as texts"),
        ({"subject": layers}, "received no labels"),
        ({"subject": cross, "labels": list("abcde")}, "received one summary"),
        ({"subject": {"0": cross}, "labels": list("abcde")}, '"encoder" or "decoder"'),
        ({"subject": {}, "labels": list("abcde")}, "received none"),
        ({"subject": nn.Linear(3, 3)}, "no such argument"),
        ({"subject": layers, "labels": list("abcde"), "beside": layers}, "received beside, too"),
    ):
        with pytest.raises(ArgumentError, match=message):
            heedful.show(target_labels=list("xyz"), **arguments)


@pytest.fixture(scope="module")
def files(folders, tmp_path_factory):
    model = load_model(find_model(str(folders["BART"])), "BART")
    read = read_by(model)
    out: Path = tmp_path_factory.mktemp("pages") / "page.html"
    page_of(model, read, run(model, read, ALL)).save(out)
    return {"both": out, "read": read, "model": model}


@pytest.fixture
def tab(opened):
    it = opened("both")
    it.page.locator("[data-shown]").nth(2).wait_for()
    return it


def part(page, kind):
    """Return the view below a heading."""
    return page.locator(f"h2:text-is('{kind}') + .view")


def test_the_page_can_be_used_and_asks_nothing(tab):
    assert tab.complaints == []
    assert tab.requests == []
    assert violations(tab.page) == []
    assert tab.page.locator("h2").all_inner_texts() == KINDS


def test_the_map_of_cross_attention_has_tokens_of_both_texts(tab, files):
    view, model, read = part(tab.page, CROSS), files["model"], files["read"]
    weights = eager(model, read)[CROSS][0][0, 0]
    query = len(read.of_decoder) // 2
    assert f"(query {query}) attends to" in view.locator(".query").inner_text()
    rows = view.locator(".query table tbody tr").all()
    texts = [it.strip() for it in model.texts(read.text)]
    for row in rows:
        text, place, weight = row.locator("th, td").all_inner_texts()[:3]
        assert text.strip("␣ ") == texts[int(place)]
        assert number(weight) == pytest.approx(weights[query, int(place)].item(), abs=6e-5)
    assert len(rows) == min(8, len(texts))
    assert "received mass" not in view.locator(".query").inner_text()


def test_search_goes_through_the_text_that_is_shown(tab, files):
    view, model, read = part(tab.page, CROSS), files["model"], files["read"]
    field, hits = view.get_by_label("Find a token"), view.locator(".search [role=status]")
    coloring = view.get_by_label("Color the tokens by")
    for tokens, label, heading in (
        (read.text, "the weight that the query gives them", "The text of the keys"),
        (read.of_decoder, "their entropy", "The text of the queries"),
    ):
        coloring.select_option(label=label)
        assert view.get_by_role("heading", name=heading).count() == 1
        expected = [i for i, text in enumerate(model.texts(tokens)) if "be" in text]
        assert len(expected) in (1, 2)
        field.fill("be")
        assert hits.inner_text() == f"{len(expected)} found"
        for _ in range(2):
            field.press("Enter")
            assert re.fullmatch(rf"[1-{len(expected)}] of {len(expected)}", hits.inner_text())
            chosen = view.locator(".tokens-of-text [aria-selected=true]")
            assert chosen.count() == 1
            assert "be" in chosen.inner_text()
