"""Tests that models of transformers compute the same with "heedful" as with eager attention, without dense masks."""

import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from heedful import Causal, Padding, attention, record
from heedful.errors import ArgumentError, HeedfulError, MissingExtraError
from heedful.integrations.lazy_mask import LazyMask
from heedful.integrations.transformers import attend, register
from heedful.integrations.transformers_masks import make_mask
from heedful.intervals import Intervals
from integrations.families import (
    BOTH,
    DECODERS,
    ENCODERS,
    LOCAL,
    VOCABULARY,
    WINDOW,
    bart,
    bert,
    gpt2,
    llama,
    mistral,
    modernbert,
    transformers,
    vit,
)

register()
T = 20
PADDINGS = ("none", "right", "left")


def padded(padding: str) -> dict:
    """Return the token ids of three sequences, of which all but the first are shorter."""
    tokens = {"input_ids": torch.randint(1, VOCABULARY, (3, T))}
    if padding != "none":
        real = torch.arange(T) < torch.tensor([[T], [T - 3], [T // 3]])
        tokens["attention_mask"] = (real.flip(1) if padding == "left" else real).long()
    return tokens


def batch(model, padding: str) -> dict:
    """Return the inputs of a model. Those of a decoder are padded like those of the encoder."""
    tokens = padded(padding)
    if model.config.is_encoder_decoder:
        of_decoder = padded(padding)
        tokens |= {f"decoder_{name}": of[:, :-4] for name, of in of_decoder.items()}
        if padding == "right":
            tokens["decoder_attention_mask"][:, 0] = 1
    return tokens


def real_logits(model, inputs: dict):
    """Return the logits of the real tokens."""
    logits = model(**inputs).logits
    real = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    if real is None or logits.dim() == 2:
        return logits
    return logits[real[:, : logits.shape[1]].bool()]


def outcomes(model, implementation: str, compute=real_logits, **inputs):
    """Return the logits, and the gradient of every parameter."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    logits = compute(model, inputs)
    (logits * torch.linspace(-1, 1, logits.shape[-1])).square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def assert_as_eager(model, **inputs) -> None:
    eager, ours = (outcomes(model, name, **inputs) for name in ("eager", "heedful"))
    assert eager.keys() == ours.keys()
    largest = max(
        float(gradient.abs().max()) for name, gradient in eager.items() if name != "logits"
    )
    for name, expected in eager.items():
        scale = float(expected.abs().max()) if name == "logits" else largest
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=2e-6 * scale, msg=name)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("build", [*DECODERS, *ENCODERS, *BOTH])
def test_logits_and_gradients(build, padding):
    model = build().eval()
    assert_as_eager(model, **batch(model, padding))


def test_an_image_encoder():
    assert_as_eager(vit(), pixel_values=torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("build", [*DECODERS, *BOTH])
def test_generated_tokens(build, cache, padding):
    model, inputs = build().eval(), padded(padding)
    options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    found = {}
    for implementation in ("eager", "heedful"):
        model.set_attn_implementation(implementation)
        found[implementation] = model.generate(
            **inputs, **options, output_logits=True, return_dict_in_generate=True
        )
    assert torch.equal(found["heedful"].sequences, found["eager"].sequences)
    ours, eager = (torch.stack(found[name].logits) for name in ("heedful", "eager"))
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5 * float(eager.abs().max()))


@pytest.mark.parametrize("build", [build for build in DECODERS if build is not gpt2])
def test_packed_sequences(build):
    """Several documents form one sequence, and their positions distinguish them."""
    positions = torch.cat([torch.arange(length) for length in (5, 11, 3)]).unsqueeze(0)
    ids = torch.randint(1, VOCABULARY, (1, 19))
    assert_as_eager(build().eval(), input_ids=ids, position_ids=positions, use_cache=False)


@pytest.mark.parametrize(("build", "window"), [(mistral, WINDOW), (modernbert, LOCAL // 2)])
def test_windows_hide_keys_from_their_size_on(build, window):
    for length in (window, window + 1, window + 2):
        assert_as_eager(build().eval(), input_ids=torch.randint(1, VOCABULARY, (1, length)))


def test_none_means_causal_for_several_queries():
    assert make_mask(1, 1, 3, q_offset=5) is None
    # This mask hides nothing, while None in its place would mean causal.
    assert make_mask(1, 2, 3, q_offset=5).mask is None


def test_padding_with_holes():
    tokens = {"input_ids": torch.randint(1, VOCABULARY, (2, T))}
    tokens["attention_mask"] = torch.ones(2, T, dtype=torch.long)
    tokens["attention_mask"][1, 3:9:2] = 0
    assert_as_eager(mistral().eval(), **tokens)


@pytest.mark.parametrize("kind", ["Boolean", "added"])
def test_masks_from_the_user(kind):
    seen = torch.rand(2, 1, T, T) < 0.5
    seen |= torch.eye(T, dtype=torch.bool)
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    ids, model = torch.randint(1, VOCABULARY, (2, T)), llama().eval()
    masks = {"eager": added, "heedful": seen if kind == "Boolean" else added}
    eager, ours = (
        outcomes(
            model,
            name,
            lambda model, inputs: model(**inputs).logits,
            input_ids=ids,
            attention_mask=mask,
        )
        for name, mask in masks.items()
    )
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-6)


def test_checkpointed_gradients():
    """Recomputed layers receive the same mask."""
    model, inputs = llama().train(), padded("left")
    expected = outcomes(model, "eager", **inputs)
    model.activation_checkpointing_enable({"use_reentrant": True})
    ours = outcomes(model, "heedful", **inputs)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)


def test_compiled_models():
    model, inputs = llama().eval(), padded("left")
    model.set_attn_implementation("heedful")
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager")(**inputs).logits
        assert torch.equal(compiled, model(**inputs).logits)


# --- masks that are never computed -----------------------------------------------------------------------------


class LargestResult(TorchDispatchMode):
    """Records the size in bytes of the largest result of any operation."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("build", [llama, mistral, bert])
def test_no_dense_mask_is_computed(build, padding):
    changes = {"max_position_embeddings": 2048} if build is bert else {}
    model, long = build(**changes), 2048
    tokens = {"input_ids": torch.randint(1, VOCABULARY, (2, long))}
    if padding != "none":
        real = torch.arange(long) < torch.tensor([[long], [long // 3]])
        tokens["attention_mask"] = real.flip(1) if padding == "left" else real
    model.set_attn_implementation("heedful")
    with torch.no_grad(), LargestResult() as largest:
        model.base_model(**tokens)
    assert 0 < largest.bytes < long * long  # the size of a Boolean mask for one batch entry


def test_masks_are_lowered_once_for_all_layers(monkeypatch):
    lowered = []
    single = Intervals.single.__func__
    counted = lambda cls, *edges: lowered.append(edges) or single(cls, *edges)  # noqa: E731
    monkeypatch.setattr(Intervals, "single", classmethod(counted))

    def count(layers: int) -> int:
        lowered.clear()
        model = llama(num_hidden_layers=layers)
        model.set_attn_implementation("heedful")
        model(**padded("left"))
        return len(lowered)

    assert count(layers=5) == count(layers=1) > 0


def test_a_model_that_computes_with_its_mask_gets_the_dense_one():
    mask = make_mask(
        2, 4, 6, q_offset=2, attention_mask=torch.arange(6) >= torch.tensor([[0], [3]])
    )
    assert mask.shape == (2, 1, 4, 6)
    assert mask.dtype == torch.bool
    dense = (Causal(align="end") & Padding([6, 3], side="left")).dense(4, 6)
    assert type(mask[:, :, 1:]) is torch.Tensor
    assert torch.equal(mask[:, :, 1:], dense[:, :, 1:])
    assert torch.equal(~mask, ~dense)
    assert isinstance(mask.detach(), LazyMask)


# --- dropout -----------------------------------------------------------------------------------------


def test_dropout_applies_only_in_training_mode():
    model, inputs = llama(attention_dropout=0.5), padded("left")
    model.set_attn_implementation("heedful")

    def logits(seed: int):
        torch.manual_seed(seed)
        return real_logits(model, inputs)

    model.eval()
    assert torch.equal(logits(0), logits(1))
    exact = logits(0)
    model.train()
    assert torch.equal(logits(0), logits(0))
    assert not torch.allclose(logits(0), logits(1))
    assert not torch.allclose(logits(0), exact)


def test_a_layer_applies_its_dropout_probability():
    """Dropout applies in training only."""
    tensors = [torch.randn(1, 2, 5, 8) for _ in range(3)]
    layer = torch.nn.Identity()

    def output(p: float):
        return attend(layer, *tensors, None, dropout=p)[0]

    mean = torch.stack([output(0.4) for _ in range(3000)]).mean(dim=0)
    torch.testing.assert_close(mean, output(0.0), rtol=0, atol=0.1)
    assert (output(1.0) == 0).all()
    layer.eval()
    assert torch.equal(output(1.0), output(0.0))


# --- unsupported calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [gpt2, llama, bert, bart, vit])
def test_requested_weights_are_refused(build):
    model = build().eval()
    model.set_attn_implementation("heedful")
    inputs = {"pixel_values": torch.randn(1, 3, 32, 32)} if build is vit else padded("none")
    with pytest.raises(ArgumentError, match=r"output_attentions: expected False.*eager"):
        model(**inputs, output_attentions=True)


def test_weights_requested_by_the_config_are_refused():
    model = llama(attn_implementation="eager", output_attentions=True)
    model.set_attn_implementation("heedful")
    with pytest.raises(ArgumentError, match="output_attentions"):
        model(**padded("none"))


def test_user_defined_mask_functions_are_refused():
    model = llama()
    model.set_attn_implementation("heedful")
    with pytest.raises(ArgumentError, match=r"mask_function.*test_transformers\.diagonal.*sdpa"):
        transformers.masking_utils.create_causal_mask(
            model.config, torch.zeros(1, 4, 48), None, None, and_mask_function=diagonal
        )


def diagonal(batch, head, query, key):
    """Return whether a query sees a key, as a mask function that heedful does not know."""
    return query == key


@pytest.mark.parametrize("name", ["head_mask", "cache", "indices"])
def test_unsupported_arguments_are_refused(name):
    tensors = [torch.randn(1, 2, 5, 8) for _ in range(3)]
    with pytest.raises(ArgumentError, match=rf"{name}: expected None.*eager"):
        attend(torch.nn.Identity(), *tensors, None, **{name: torch.ones(2)})


def test_masks_of_other_shapes_are_refused():
    tensors = [torch.randn(1, 2, 5, 8) for _ in range(3)]
    with pytest.raises(ArgumentError, match=r"attention_mask: expected 4 dimensions"):
        attend(torch.nn.Identity(), *tensors, torch.ones(1, 5))
    with pytest.raises(ArgumentError, match=r"key ranges for 5 queries and 5 keys.*4 queries"):
        attend(torch.nn.Identity(), *tensors, make_mask(1, 4, 5, attention_mask=torch.zeros(1, 5)))


# --- register ----------------------------------------------------------------------------------------


def test_register_checks_itself(monkeypatch):
    register(check=True)
    monkeypatch.setattr(
        "heedful.integrations.transformers.attention",
        lambda *tensors, **options: attention(*tensors, **options) * 1.01,
    )
    with pytest.raises(HeedfulError, match=r"logits differ by up to"):
        register(check=True)


def test_register_without_transformers_raises_with_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"heedful\[transformers\]"):
        register()


def test_a_model_can_be_recorded():
    model, inputs = llama().eval(), padded("left")
    model.set_attn_implementation("heedful")
    expected = model(**inputs).logits
    trace = record(model, **inputs)
    assert torch.equal(trace.result.logits, expected)
    assert trace["attn_output"].value.shape[:2] == (3, T)
