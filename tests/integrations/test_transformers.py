"""Models of transformers under "heedful": what eager attention computes, without its masks."""

import pytest
import torch

from heedful.integrations.transformers import register
from integrations.families import (
    BOTH,
    DECODERS,
    ENCODERS,
    VOCABULARY,
    gpt2,
    vit,
)

register()
T = 20
PADDINGS = ("none", "right", "left")


def padded(padding: str) -> dict:
    """Token ids of three sequences; all but the first are shorter."""
    tokens = {"input_ids": torch.randint(1, VOCABULARY, (3, T))}
    if padding != "none":
        real = torch.arange(T) < torch.tensor([[T], [T - 3], [T // 3]])
        tokens["attention_mask"] = (real.flip(1) if padding == "left" else real).long()
    return tokens


def batch(model, padding: str) -> dict:
    """The model's inputs, the decoder's padded as the encoder's."""
    tokens = padded(padding)
    if model.config.is_encoder_decoder:
        of_decoder = padded(padding)
        tokens |= {f"decoder_{name}": of[:, :-4] for name, of in of_decoder.items()}
        if padding == "right":
            tokens["decoder_attention_mask"][:, 0] = 1
    return tokens


def real_logits(model, inputs: dict):
    """The logits of the real tokens."""
    logits = model(**inputs).logits
    real = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    if real is None or logits.dim() == 2:
        return logits
    return logits[real[:, : logits.shape[1]].bool()]


def outcomes(model, implementation: str, compute=real_logits, **inputs):
    """The logits, and the gradient of every parameter."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    logits = compute(model, inputs)
    (logits * torch.linspace(-1, 1, logits.shape[-1])).square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **gradients}


def assert_as_eager(model, **inputs) -> None:
    eager, ours = (outcomes(model, name, **inputs) for name in ("eager", "heedful"))
    assert eager.keys() == ours.keys()
    largest = max(float(it.abs().max()) for name, it in eager.items() if name != "logits")
    for name, expected in eager.items():
        scale = float(expected.abs().max()) if name == "logits" else largest
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=2e-6 * scale, msg=name)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("build", [*DECODERS, *ENCODERS, *BOTH])
def test_logits_and_gradients(build, padding):
    model = build().eval()
    assert_as_eager(model, **batch(model, padding))


def test_an_encoder_of_images():
    assert_as_eager(vit(), pixel_values=torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("build", [*DECODERS, *BOTH])
def test_generated_tokens(build, cache, padding):
    model, inputs = build().eval(), padded(padding)
    texts = {}
    for implementation in ("eager", "heedful"):
        model.set_attn_implementation(implementation)
        texts[implementation] = model.generate(
            **inputs, max_new_tokens=12, do_sample=False, cache_implementation=cache
        )
    assert torch.equal(texts["heedful"], texts["eager"])
    assert len(texts["eager"].unique()) > 3  # a model that repeats itself shows nothing


@pytest.mark.parametrize("build", DECODERS)
def test_packed_sequences(build):
    """Documents one after another, told apart by their positions."""
    positions = torch.cat([torch.arange(T) for T in (5, 11, 3)]).unsqueeze(0)
    ids = torch.randint(1, VOCABULARY, (1, 19))
    if build is gpt2:  # which makes its mask without them
        return
    assert_as_eager(build().eval(), input_ids=ids, position_ids=positions, use_cache=False)
