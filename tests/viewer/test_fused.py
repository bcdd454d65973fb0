"""`show` of a module whose attention a single call computes: its scores and weights are in the page, and explained."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import heedful
from heedful.integrations.transformers import register
from heedful.nn import MultiHeadAttention
from heedful.viewer.steps.discovery import recording_of_target
from heedful.viewer.steps.nodes import nodes_of
from heedful.viewer.steps.recording import recording_of

X = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))


class Fused(nn.Module):
    """Attention as models write it today."""

    def __init__(self, **options):
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.options = options

    def forward(self, x):
        query, key, value = self.project(x).unflatten(-1, (3, 2, 4)).movedim(2, 0).transpose(2, 3)
        context = F.scaled_dot_product_attention(query, key, value, **self.options)
        return context.transpose(1, 2).flatten(2)


MODULES = {
    "ours": lambda: MultiHeadAttention(8, 2),
    "grouped": lambda: MultiHeadAttention(8, 4, num_kv_heads=2),
    "soft-cap": lambda: MultiHeadAttention(8, 2, softcap=3.0),
    "dropout": lambda: MultiHeadAttention(8, 2, dropout=0.4),
    "pytorch's": lambda: Fused(is_causal=True),
    "mask": lambda: Fused(attn_mask=torch.ones(6, 6, dtype=torch.bool).tril()),
    "bias": lambda: Fused(attn_mask=torch.randn(6, 6)),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_attention_within_a_fused_call_is_found_and_explained(name):
    torch.manual_seed(0)
    nodes, attentions = nodes_of(recording_of(name, MODULES[name](), (X,), {}, None), 1 << 18)
    assert len(attentions) == 1
    found = attentions[0]
    for part in (found.scores, found.scaled, found.weights, found.context):
        assert part is not None
        assert nodes[part].rule is not None
    assert (found.masked is not None) == (name not in ("bias",))
    assert (found.dropped is not None) == (name == "dropout")
    assert nodes[found.weights].axes == ("batch", "head", "token", "key")
    assert "reference" in " ".join(nodes[found.context].notes)
    assert nodes[found.scores].notes == ["Computed beside by the reference."]


def test_it_is_found_without_inputs():
    _, attentions = nodes_of(recording_of_target(MultiHeadAttention(8, 2)), 1 << 18)
    assert len(attentions) == 1


@pytest.mark.parametrize("implementation", ["heedful", "sdpa"])
def test_every_layer_of_a_transformers_model_is_found(implementation):
    transformers = pytest.importorskip("transformers")
    register()
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.MistralConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, sliding_window=5
    )
    torch.manual_seed(0)
    model = transformers.MistralForCausalLM(config).eval()
    model.set_attn_implementation(implementation)
    ids = torch.randint(1, 50, (1, 9))
    with torch.no_grad():
        expected = model(ids).logits
        trace = heedful.record(model, ids)
    assert torch.equal(trace.result.logits, expected)
    own = str(Path(heedful.__file__).parent)
    assert not any((step.file or "").startswith(own) for step in trace)
    if implementation == "heedful":  # how its mask is made is no concern of the reader
        padded = heedful.record(model, ids, attention_mask=(torch.arange(9) >= 2)[None].long())
        assert not any("causal_mask" in step.name for step in padded)
    weights = [trace[f"model.layers.{layer}.self_attn.weights"].value for layer in range(2)]
    distance = torch.arange(9)[:, None] - torch.arange(9)
    for value in weights:
        assert (value[..., (distance < 0) | (distance >= 5)] == 0).all()
        torch.testing.assert_close(value.sum(-1), torch.ones(1, 4, 9))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(ids, output_attentions=True).attentions
    torch.testing.assert_close(tuple(weights), eager, atol=1e-5, rtol=1e-4)


def test_a_picture_shows_its_maps(tmp_path):
    pytest.importorskip("matplotlib")
    heedful.show(MultiHeadAttention(8, 2), X).save(tmp_path / "maps.svg")
    assert (tmp_path / "maps.svg").stat().st_size > 5_000


@pytest.mark.parametrize("name", MODULES)
def test_the_page_draws_itself_without_error(name, tmp_path, open_address):
    torch.manual_seed(0)
    page = heedful.show(MODULES[name](), X, labels=[f"word {i}" for i in range(6)])
    page.save(tmp_path / "page.html")
    it = open_address((tmp_path / "page.html").as_uri())
    assert it.page.evaluate("document.documentElement.dataset.ready === 'true'")
    it.page.locator(".card", has_text="weights").first.locator(".cell").first.hover()
    assert "Computed beside by the reference." in it.page.content()
    assert it.complaints == []
    assert it.requests == []
