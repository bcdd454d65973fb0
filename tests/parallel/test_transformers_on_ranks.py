"""Models of transformers on many ranks: logits and gradients of one process; what would be wrong is refused."""

import copy

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from heedful.errors import ArgumentError
from heedful.integrations.transformers import attend, register
from heedful.integrations.transformers_masks import make_mask
from heedful.masks import Causal, Window
from heedful.parallel import (
    balanced_order,
    context_parallel,
    contiguous_order,
    shard,
    simulate,
    ulysses_attention,
    unshard,
)
from integrations.families import (
    VOCABULARY,
    WINDOW,
    gemma2,
    gpt2,
    gpt_oss,
    llama,
    llama4,
    mistral,
    transformers,
    vit,
)

register()
T = 22
BALANCED = balanced_order(Causal(), T, 2)
ORDERS = {
    "balanced": BALANCED,
    "contiguous": contiguous_order(T, 2),
    "windowed": balanced_order(Window(WINDOW), T, 2),
}


def qwen2():
    """Return a model whose second layer has a sliding window, longer than the tokens of a rank."""
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        use_sliding_window=True,
        sliding_window=T // 2 + 3,
        max_window_layers=1,
    )
    return transformers.Qwen2ForCausalLM(config)


def model_of(build, implementation="heedful"):
    """Return a model with weights so large that its attention matters, other than those it is initialized with."""
    torch.manual_seed(3)
    model = build().train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.15)
    if build is not gpt_oss:  # its experts have no float64
        model.double()
    model.set_attn_implementation(implementation)
    return model


def batch(padding):
    ids = torch.randint(1, VOCABULARY, (2, T), generator=torch.Generator().manual_seed(0))
    if padding == "none":
        return ids, None
    real = torch.arange(T) < torch.tensor([[T], [T - 8]])
    return ids, (real.flip(1) if padding == "left" else real).long()


def weights_of(ids, mask):
    """Return what the loss multiplies the logits of each token by: 0 for padding."""
    weights = torch.sin(torch.arange(ids.numel() * VOCABULARY).double()).view(*ids.shape, -1)
    return weights if mask is None else weights * mask.unsqueeze(-1)


def in_one_process(build, padding, implementation, dtype=torch.float64):
    model, (ids, mask) = model_of(build, implementation), batch(padding)
    model = model if build is gpt_oss else model.to(dtype)
    logits = model(ids, attention_mask=mask, use_cache=False).logits
    return outcomes(model, logits, weights_of(ids, mask).to(logits.dtype))


def outcomes(model, logits, weights):
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad((logits * weights).sum(), tuple(named.values()))
    return {"logits": logits.detach() * (weights != 0)} | dict(zip(named, gradients, strict=True))


def on_ranks(build, padding, order, attend_by=None, **options):
    model, (ids, mask) = model_of(build), batch(padding)

    def on_each_rank(group):
        mine = {"input_ids": ids, "position_ids": torch.arange(T).expand(2, -1)}
        mine = {name: shard(tensor, group, order, dim=1) for name, tensor in mine.items()}
        with context_parallel(group, order, attend_by):
            logits = model(**mine, attention_mask=mask, use_cache=False, **options).logits
        found = outcomes(model, logits, shard(weights_of(ids, mask), group, order))
        return found | {"logits": unshard(found["logits"], group, order)}

    first, second = simulate(on_each_rank, 2)
    assert torch.equal(first["logits"], second["logits"])
    shares = {name: first[name] + second[name] for name in first if name != "logits"}
    return {"logits": first["logits"], **shares}


def assert_equal(found, expected, atol):
    for name, tensor in expected.items():
        size = max(1.0, float(tensor.abs().max()))
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=atol * size, msg=name)


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@pytest.mark.parametrize("build", [mistral, qwen2, llama, gpt2, gemma2, gpt_oss])
def test_logits_and_gradients_are_those_of_one_process(build, padding):
    atol = 1e-5 if build in (gpt_oss, gemma2) else 1e-10  # experts and weights of norms in float32
    found = on_ranks(build, padding, BALANCED)
    assert_equal(found, in_one_process(build, padding, "heedful"), atol)
    # transformers' own attention is the other witness, in float32, because in float64 its rows of padding are NaN.
    eager = in_one_process(build, padding, "eager", torch.float32)
    assert_equal(found, {name: tensor.to(found[name]) for name, tensor in eager.items()}, 1e-4)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_sliding_window_is_that_of_all_tokens_in_every_order(order):
    expected = in_one_process(mistral, "none", "eager")
    for attend_by in (None, ulysses_attention):
        assert_equal(on_ranks(mistral, "none", order, attend_by), expected, 1e-5)


def test_a_rank_with_one_token_sees_no_later_ones():
    """Of a layer that gets no mask, a causal one needs none for one token, unless other ranks have newer ones."""
    layer, x, order = torch.nn.Identity(), torch.randn(1, 2, 2, 8), contiguous_order(2, 2)

    def on_each_rank(group):
        mine, places = shard(x, group, order), order.places[group.axes[0].rank].unsqueeze(0)
        with context_parallel(group, order):
            return attend(layer, mine, mine, mine, None, position_ids=places)[0]

    output = torch.cat(simulate(on_each_rank, 2), dim=1)
    torch.testing.assert_close(output, attend(layer, x, x, x, None)[0])


def refused(call, name, order=BALANCED):
    """Run a call of (model, ids, positions) on both ranks, and check what the error names."""
    ids, _ = batch("none")

    def on_each_rank(group):
        positions = torch.arange(T).unsqueeze(0)
        with context_parallel(group, order):
            call(*(shard(tensor, group, order, dim=1) for tensor in (ids, positions)))

    with pytest.raises(ArgumentError, match=rf"^{name}: "):
        simulate(on_each_rank, 2)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_other_positions_are_refused(order):
    model = model_of(mistral)
    refused(lambda ids, _: model(ids, use_cache=False), "position_ids", order)
    packed = lambda ids, places: model(ids, position_ids=places % 11, use_cache=False)  # noqa: E731
    refused(packed, "position_ids", order)
    refused(
        lambda ids, places: model(ids, position_ids=places + 1, use_cache=False), "position_ids"
    )


@pytest.mark.parametrize("build", [mistral, gpt2, llama, qwen2])
def test_a_cache_is_refused(build):
    model = model_of(build).eval()
    refused(lambda ids, places: model(ids, position_ids=places), "use_cache")
    refused(lambda ids, _: model.generate(ids, max_new_tokens=2, pad_token_id=0), ".*")


def test_a_sharded_padding_mask_is_refused():
    model, real = model_of(mistral), torch.ones(2, T // 2).long()
    call = lambda ids, places: model(ids, position_ids=places, attention_mask=real, use_cache=False)  # noqa: E731
    refused(call, "attention_mask")


@pytest.mark.parametrize("shape", [(T // 2, T // 2), (T // 2, T), (T, T)])
def test_a_mask_of_the_user_is_refused(shape):
    """It would have more than two key ranges."""
    model, mask = model_of(llama), torch.ones(2, 1, *shape).bool()
    call = lambda ids, places: model(ids, position_ids=places, attention_mask=mask, use_cache=False)  # noqa: E731
    refused(call, "mask")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("build", [mistral, gpt2, llama])
def test_other_implementations_are_refused(build, implementation):
    model = model_of(build, implementation)
    refused(
        lambda ids, places: model(ids, position_ids=places, use_cache=False), "context_parallel"
    )


def test_a_model_that_does_not_hand_on_positions_is_refused():
    model, layer, x = model_of(llama4), torch.nn.Identity(), torch.randn(1, 2, T // 2, 8)
    refused(lambda ids, places: model(ids, position_ids=places, use_cache=False), "position_ids")
    refused(lambda *_: attend(layer, x, x, x, None), "position_ids")
    model, image = vit().eval(), torch.randn(1, 3, 32, 32)
    model.set_attn_implementation("heedful")
    refused(lambda *_: model(pixel_values=image), "input_ids|position_ids")


def test_labels_that_would_be_shifted_within_a_rank_are_refused():
    model = model_of(mistral)

    def loss(ids, places):
        return model(ids, position_ids=places, use_cache=False, labels=ids).loss

    refused(loss, "context_parallel")

    ids, _ = batch("none")
    expected = model(ids, labels=ids, use_cache=False).loss
    shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)

    def share(group):
        mine = [
            shard(tensor, group, BALANCED, dim=1)
            for tensor in (ids, torch.arange(T).unsqueeze(0), shifted)
        ]
        with context_parallel(group, BALANCED):
            options = {"use_cache": False, "num_items_in_batch": torch.tensor(2 * (T - 1))}
            return model(
                mine[0], position_ids=mine[1], labels=mine[0], shift_labels=mine[2], **options
            ).loss

    torch.testing.assert_close(sum(simulate(share, 2)), expected)


def test_layers_that_are_computed_again_outside_of_the_context_are_refused():
    whole, (ids, _) = model_of(llama), batch("none")
    expected = in_one_process(llama, "none", "heedful")

    def gradients(group, within):
        model = copy.deepcopy(whole)
        model.activation_checkpointing_enable({"use_reentrant": True})
        mine = shard(ids, group, BALANCED, dim=1)
        places = shard(torch.arange(T).unsqueeze(0), group, BALANCED, dim=1)
        with context_parallel(group, BALANCED):
            logits = model(mine, position_ids=places, use_cache=False).logits
            loss = (logits * shard(weights_of(ids, None), group, BALANCED)).sum()
            if within:
                loss.backward()
        if not within:
            loss.backward()
        return {name: p.grad for name, p in model.named_parameters()}

    first, second = simulate(lambda group: gradients(group, within=True), 2)
    shares = {name: first[name] + second[name] for name in first}
    assert_equal(shares, {name: t for name, t in expected.items() if name != "logits"}, 1e-10)
    with pytest.raises(ArgumentError, match="made with a context"):
        simulate(lambda group: gradients(group, within=False), 2)


@pytest.mark.parametrize(
    ("queries", "keys", "offset"), [(T, T, 0), (1, T // 2 + 1, T // 2), (T // 2, T // 2 + 4, 0)]
)
def test_a_mask_of_other_tokens_is_refused(queries, keys, offset):
    """A model asks for the mask of tokens that are not sharded, follow a cache, or have one of a fixed size."""
    refused(lambda *_: make_mask(1, queries, keys, q_offset=offset), "input_ids")


def test_a_mask_is_of_its_context_and_has_no_entries():
    def mask_of_rank(*_):
        mask = make_mask(1, T // 2, T // 2)
        assert mask.detach().sharded is mask.sharded is not None
        assert mask.shape == (1, 1, T // 2, T // 2)
        return mask[:, :, 1:]

    refused(mask_of_rank, "context_parallel")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_refused():
    """PyTorch compiles it, and reports the refusal as an error of its compiler."""
    x = torch.randn(1, 2, T // 2, 8)

    def on_each_rank(group):
        with context_parallel(group, BALANCED):
            flex_attention(x, x, x)

    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="refuse"):
        simulate(on_each_rank, 2)
