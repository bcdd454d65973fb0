"""attention_of() summarizes every attention of a model in one forward pass, and changes nothing of its output."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import heedful
from heedful import ArgumentError, Causal, Sinks, accelerate, attention_of, summarize
from heedful.gpt import GPT, GPTConfig
from heedful.integrations.transformers import register
from heedful.kernels import native
from heedful.nn import MultiHeadAttention

STATISTICS = {"top_k": 2, "pool": 4, "regions": {"first": Sinks(1)}}


class Sdpa(nn.Module):
    """Attention as models write it, with a record of its queries and keys."""

    def __init__(self, **options):
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.options = options
        self.seen: list = []

    def forward(self, x):
        query, key, value = self.project(x).unflatten(-1, (3, 2, 8)).movedim(2, 0).transpose(2, 3)
        self.seen.append((query, key))
        return (
            F.scaled_dot_product_attention(query, key, value, **self.options)
            .transpose(1, 2)
            .flatten(2)
        )


def assert_same(actual, expected):
    for name in ("entropy", "received_mass", "top_weights", "pooled_mean", "mean_distance"):
        torch.testing.assert_close(
            getattr(actual, name), getattr(expected, name), atol=1e-5, rtol=1e-5
        )
    torch.testing.assert_close(actual.region_mass["first"], expected.region_mass["first"])


def test_every_layer_is_summarized_and_the_output_is_the_same():
    mask = torch.rand(1, 1, 9, 9) > 0.3
    model = nn.Sequential(
        Sdpa(is_causal=True),
        Sdpa(scale=0.5),
        Sdpa(attn_mask=mask),
        Sdpa(attn_mask=torch.randn(9, 9)),
    )
    x = torch.randn(1, 9, 16)
    expected = model(x)
    output, layers = attention_of(model, x, **STATISTICS)
    assert torch.equal(output, expected)
    assert not output.requires_grad
    assert list(layers) == ["0", "1", "2", "3"]
    options = (
        {"mask": Causal()},
        {"scale": 0.5},
        {"mask": mask},
        {"bias": model[3].options["attn_mask"]},
    )
    for layer, summary, option in zip(model, layers.values(), options, strict=True):
        assert_same(summary, summarize(*layer.seen[0], **option, **STATISTICS))


@pytest.mark.skipif(native.library.missing is not None, reason="the native library is missing")
def test_attention_that_accelerate_computes_is_summarized():
    model, x = nn.Sequential(Sdpa(is_causal=True)), torch.randn(1, 80, 16)
    with accelerate() as acceleration:
        expected = model(x)
        output, layers = attention_of(model, x, **STATISTICS)
    assert acceleration.report().served == 2
    assert torch.equal(output, expected)
    assert_same(layers["0"], summarize(*model[0].seen[0], Causal(), **STATISTICS))


@pytest.mark.parametrize("kernel", ["native", "torch_sdpa", "reference"])
def test_attention_of_heedful_is_seen_once_on_every_kernel(kernel, monkeypatch):
    query = torch.randn(1, 2, 5, 8)

    class Model(nn.Module):
        def forward(self, x):
            return heedful.attention(x, x, x, Causal(), kernel=kernel)

    output, layers = attention_of(Model(), query, **STATISTICS)
    assert torch.equal(output, heedful.attention(query, query, query, Causal(), kernel=kernel))
    assert list(layers) == ["Model"]
    assert_same(layers["Model"], summarize(query, query, Causal(), **STATISTICS))


def test_small_calls_that_are_repeated_are_seen():
    class Model(nn.Module):
        def forward(self, x):
            for _ in range(3):
                x = heedful.attention(x, x, x)
                x = heedful.scaled_dot_product_attention(x, x, x)
            return x

    query = torch.randn(1, 2, 5, 8)
    Model()(query)
    output, layers = attention_of(Model(), query)
    assert torch.equal(output, Model()(query))
    assert list(layers) == ["Model", *(f"Model ({n})" for n in range(2, 7))]


def test_our_gpt_and_its_modules():
    torch.manual_seed(1)
    config = GPTConfig(vocab_size=30, context_length=20, num_layers=3, num_heads=2, d_model=16)
    model = GPT(config).eval()
    ids = torch.randint(30, (1, 12))
    with torch.no_grad():
        expected = model(ids)
    output, layers = attention_of(model, ids, **STATISTICS)
    assert torch.equal(output, expected)
    assert len(layers) == 3
    for summary in layers.values():
        assert summary.entropy.shape == (1, 2, 12)


@pytest.mark.parametrize("implementation", ["sdpa", "heedful"])
def test_a_model_of_transformers(implementation):
    transformers = pytest.importorskip(
        "transformers", reason="install it with: pip install -e '.[models]'"
    )
    register()
    config = transformers.LlamaConfig(
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=50,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(50, (2, 14))
    real = (torch.arange(14) >= torch.tensor([[0], [4]])).long()
    inputs = {"input_ids": ids, "attention_mask": real}
    with torch.no_grad():
        weights = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        expected = model(**inputs).logits
    output, layers = attention_of(model, inputs, layers=[0, 2], heads=[1, 5])
    assert torch.equal(output.logits, expected)
    assert list(layers) == [f"model.layers.{i}.self_attn" for i in (0, 2)]
    for i, summary in zip((0, 2), layers.values(), strict=True):
        entropy = torch.special.entr(weights[i][:, [1, 5]]).sum(-1)
        seen = real[:, None].bool().expand_as(entropy)
        torch.testing.assert_close(summary.entropy[seen], entropy[seen], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "mask", [None, Causal(), torch.rand(2, 4, 7, 7) > 0.4], ids=["none", "causal", "dense"]
)
def test_some_heads_of_grouped_attention(mask):
    query, key = torch.randn(2, 4, 7, 8), torch.randn(2, 2, 7, 8)
    options = {"mask": mask, "bias": torch.randn(4, 7, 7), "sinks": torch.randn(4), "softcap": 3.0}

    class Model(nn.Module):
        def forward(self, x):
            return heedful.attention(x, key, key, **options)

    _, layers = attention_of(Model(), query, heads=[3, 0], **STATISTICS)
    whole = summarize(query, key, **options, **STATISTICS)
    torch.testing.assert_close(layers["Model"].entropy, whole.entropy[:, [3, 0]])
    torch.testing.assert_close(layers["Model"].pooled_max, whole.pooled_max[:, [3, 0]])


def test_each_attention_is_shown_when_it_was_summarized():
    model, seen = nn.Sequential(Sdpa(is_causal=True), Sdpa(), Sdpa(scale=0.5)), []

    def each(name, problem, summary):
        seen.append((name, summary))
        assert len(model[int(name)].seen) == 1
        assert all(not layer.seen for layer in model[int(name) + 1 :])
        query, key = model[int(name)].seen[0]
        assert torch.equal(problem.query, query[:, [1]])
        assert torch.equal(problem.key, key[:, [1]])
        assert problem.scale == model[int(name)].options.get("scale")

    _, layers = attention_of(model, torch.randn(1, 9, 16), layers=[0, 2], heads=[1], each=each)
    assert [name for name, _ in seen] == ["0", "2"]
    assert all(torch.equal(layers[name].entropy, summary.entropy) for name, summary in seen)


def test_queries_and_keys_are_let_go():
    """No layer's query is alive when the next one runs."""
    alive: list = []

    class Layer(nn.Module):
        def forward(self, x):
            gc.collect()
            assert not any(reference() is not None for reference in alive)
            query = (x + 1).view(1, 5, 2, 8).transpose(1, 2)
            alive.append(weakref.ref(query))
            return F.scaled_dot_product_attention(query, query, query).transpose(1, 2).flatten(2)

    attention_of(nn.Sequential(Layer(), Layer(), Layer()), torch.randn(1, 5, 16), pool=2)
    assert len(alive) == 3


def test_no_tensor_of_a_summary_stays_while_the_model_runs():
    """It would split the heap that the next layers need; what is returned has the same numbers."""
    alive, entropies = [], []

    def each(name, problem, summary):
        gc.collect()
        assert not any(reference() is not None for reference in alive)
        tensors = [*vars(summary).values(), *summary.region_mass.values()]
        alive.extend(weakref.ref(it) for it in tensors if isinstance(it, torch.Tensor))
        entropies.append(summary.entropy.tolist())

    model = nn.Sequential(Sdpa(), Sdpa(is_causal=True), Sdpa())
    _, layers = attention_of(model, torch.randn(1, 9, 16), each=each, **STATISTICS)
    assert [it.entropy.tolist() for it in layers.values()] == entropies
    for layer, summary in zip(model, layers.values(), strict=True):
        options = {"mask": Causal()} if layer.options else {}
        assert_same(summary, summarize(*layer.seen[0], **options, **STATISTICS))


def test_modules_and_inputs_of_any_kind():
    model = MultiHeadAttention(8, 2)
    x = torch.randn(1, 5, 8)
    for inputs in (x, (x,), {"x": x}):
        _, layers = attention_of(model, inputs)
        assert list(layers) == ["MultiHeadAttention"]


def test_nothing_stays_behind_after_an_error():
    class Model(nn.Module):
        def forward(self, x):
            heedful.attention(x, x, x)
            raise RuntimeError("in the model")

    asks = torch.overrides.has_torch_function, F.has_torch_function
    model = Model()
    with pytest.raises(RuntimeError, match="in the model"):
        attention_of(model, torch.randn(1, 2, 5, 8))
    assert torch._C._len_torch_function_stack() == 0
    assert (torch.overrides.has_torch_function, F.has_torch_function) == asks
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"layers": [0, 3]},
            r"layers: expected indices from 0 to 0, because the model ran 1 .* received \[3\]",
        ),
        ({"heads": [2]}, "heads: expected indices of query heads from 0 to 1"),
        ({"heads": []}, "heads: expected"),
        ({"top_k": -1}, "top_k: expected"),
    ],
)
def test_errors_say_what_there_is(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        attention_of(Sdpa(), torch.randn(1, 5, 16), **arguments)


def test_a_model_without_visible_attention_is_an_error():
    with pytest.raises(ArgumentError, match="model: expected a model that calls"):
        attention_of(nn.Linear(3, 3), torch.randn(2, 3))


def test_small_calls_that_repeat_are_seen():
    x = torch.randn(1, 2, 4, 8)
    for attend in (heedful.attention, heedful.scaled_dot_product_attention):

        class Model(nn.Module):
            def forward(self, x, attend=attend):
                return attend(x, x, x)

        for _ in range(3):
            attend(x, x, x)
        assert len(attention_of(Model(), x).layers) == 1


def test_the_attention_of_another_thread_is_none_of_the_models():
    x = torch.randn(1, 2, 4, 8)

    class Model(nn.Module):
        def forward(self, x):
            other = threading.Thread(target=heedful.attention, args=(x, x, x))
            other.start()
            other.join()
            return heedful.attention(x, x, x)

    assert len(attention_of(Model(), x).layers) == 1


def test_our_function_in_the_place_of_pytorchs_is_seen_once(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", heedful.scaled_dot_product_attention)
    assert list(attention_of(Sdpa(), torch.randn(1, 5, 16)).layers) == ["Sdpa"]


def test_every_option_of_our_function_is_part_of_what_is_summarized():
    generator = torch.Generator().manual_seed(0)
    x, bias = torch.randn(1, 2, 4, 8, generator=generator), torch.randn(4, 4, generator=generator)
    options = {"bias": bias, "scale": 0.3, "softcap": 2.0, "sinks": torch.tensor([0.5, -1.0])}

    class Model(nn.Module):
        def forward(self, x):
            return heedful.attention(x, x, x, heedful.Causal(), kernel="online", **options)

    (summary,) = attention_of(Model(), x, rows=range(4)).layers.values()
    expected = heedful.summarize(x, x, heedful.Causal(), rows=range(4), **options)
    assert torch.equal(summary.weights, expected.weights)


class OfPyTorch(nn.Module):
    """PyTorch's module between two attentions."""

    def __init__(self):
        super().__init__()
        self.first = Sdpa()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        x = self.first(x)
        return self.attention(x, x, x, need_weights=False)[0]


def test_pytorchs_module_is_seen_where_it_does_not_run_fused():
    assert list(attention_of(OfPyTorch().train(), torch.randn(1, 5, 16)).layers) == [
        "first",
        "attention",
    ]


def test_pytorchs_modules_stay_on_their_fused_path():
    torch.manual_seed(0)
    model, x = OfPyTorch().eval(), torch.randn(1, 5, 16)
    fused = []
    with torch.no_grad():
        expected = model(x)
    with pytest.MonkeyPatch.context() as patch:
        run = torch._native_multi_head_attention
        patch.setattr(
            torch,
            "_native_multi_head_attention",
            lambda *args, **options: (fused.append(True), run(*args, **options))[1],
        )
        output, layers = attention_of(model, x)
    assert fused
    assert list(layers) == ["first"]
    assert torch.equal(output, expected)


def test_an_attention_that_cannot_be_summarized_is_no_silent_gap():
    class Broadcast(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x[:1], x[:1])

    with pytest.raises(ArgumentError, match="one batch size"):
        attention_of(Broadcast(), torch.randn(3, 2, 4, 8))


def test_pytorchs_own_error_comes_first():
    class Wrong(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x[..., :4], x)

    with pytest.raises(RuntimeError, match="size"):
        attention_of(Wrong(), torch.randn(3, 2, 4, 8))
