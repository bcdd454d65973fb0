"""Tests of `convert`: every pair of module types, what is preserved, each refusal with its reason, the certificate."""

import copy
import dataclasses
import itertools
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful.conversion import Certificate, convert
from heedful.conversion.weight_map import ParameterSlice
from heedful.errors import ArgumentError
from heedful.nn import MultiHeadAttention as ShippedAttention
from heedful.nn import RotaryEmbedding
from heedful.textbook import (
    CausalAttention,
    EinsumMultiHeadAttention,
    MultiHeadAttention,
    MultiHeadAttentionWrapper,
    SelfAttentionV1,
    SelfAttentionV2,
)


@pytest.fixture(autouse=True)
def one_thread(known_state):
    """Use one thread: products this small gain nothing from a second one, and wait for it on a busy machine."""
    torch.set_num_threads(1)


D, T, H = 8, 6, 2  # of every module here, so that each pair has sizes that fit


class Conv1D(nn.Module):
    """A layer whose weight is (in, out), as in the original GPT-2."""

    def __init__(self, d_out: int, d_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_in, d_out) / d_in**0.5)
        self.bias = nn.Parameter(torch.randn(d_out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class FusedAttention(nn.Module):
    """nanoGPT's attention, with its own causal mask and a fused projection."""

    def __init__(self, d: int = D, heads: int = H, *, bias: bool = True, tokens: int = T) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d, bias=bias), nn.Linear(d, d, bias=bias)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.2), nn.Dropout(0.3)
        self.n_head, self.n_embd = heads, d
        self.register_buffer("bias", torch.ones(tokens, tokens).tril().view(1, 1, tokens, tokens))

    def attend(self, x: Tensor, **mask) -> Tensor:
        B, tokens, C = x.shape
        query, key, value = (
            part.view(B, tokens, self.n_head, -1).transpose(1, 2)
            for part in self.c_attn(x).split(C, dim=2)
        )
        context = F.scaled_dot_product_attention(query, key, value, **mask)
        return self.resid_dropout(self.c_proj(context.transpose(1, 2).reshape(B, tokens, C)))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, is_causal=True)


class ExternalMaskAttention(FusedAttention):
    """transformers' attention, with (in, out) layers, a mask as an argument, and a tuple as its result."""

    def __init__(self, d: int = D, heads: int = H) -> None:
        super().__init__(d, heads)
        self.c_attn, self.c_proj = Conv1D(3 * d, d), Conv1D(d, d)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None):
        return self.attend(hidden_states, attn_mask=attention_mask), None


def torch_attention(heads: int = H, **options) -> nn.MultiheadAttention:
    """Return an nn.MultiheadAttention with nonzero biases, as after training."""
    module = nn.MultiheadAttention(D, heads, batch_first=True, **options)
    for name, parameter in module.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return module


def with_identity_output(module):
    nn.init.eye_(module.out_proj.weight)
    return module


CAUSAL_SIZES = {"context_length": T, "qkv_bias": True}

# Groups of modules that convert into each other.
ONE_HEAD = {
    "linear": lambda: CausalAttention(D, D, **CAUSAL_SIZES),
    "wrapper": lambda: MultiHeadAttentionWrapper(D, D, num_heads=1, **CAUSAL_SIZES),
    "einsum": lambda: EinsumMultiHeadAttention(D, D, num_heads=1, **CAUSAL_SIZES),
}
BIDIRECTIONAL = {
    "parameter": lambda: SelfAttentionV1(D, D),
    "linear": lambda: SelfAttentionV2(D, D),
    "nn": lambda: with_identity_output(ShippedAttention(D, 1, causal=False)),
    "torch": lambda: with_identity_output(
        nn.MultiheadAttention(D, 1, bias=False, batch_first=True)
    ),
}
SEPARATE_HEADS = {
    "wrapper": lambda: MultiHeadAttentionWrapper(D, D // H, num_heads=H, **CAUSAL_SIZES),
    "einsum": lambda: EinsumMultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES),
}
MIXED_HEADS = {
    "split": lambda: MultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES),
    "nn": lambda: ShippedAttention(D, H, bias=True),
    "torch": torch_attention,
    "torch, tokens first": lambda: nn.MultiheadAttention(D, H),
    "nanoGPT": FusedAttention,
    "transformers": ExternalMaskAttention,
}


def pairs(*families: dict) -> list:
    """Return every ordered pair of modules within each group."""
    return [
        pytest.param(family[a], family[b], id=f"{a} → {b}")
        for family in families
        for a, b in itertools.product(family, family)
    ]


# Every module converts into one with an output projection, which becomes the identity.
UPWARD = [
    pytest.param(make, into, id=f"{name} → {target}")
    for family, one in ((ONE_HEAD, 1), (SEPARATE_HEADS, H))
    for name, make in family.items()
    for target, into in {
        "split": lambda one=one: MultiHeadAttention(D, D, num_heads=one, **CAUSAL_SIZES),
        "nn": lambda one=one: ShippedAttention(D, one, bias=True),
        "torch": lambda one=one: torch_attention(one),
        "nanoGPT": lambda one=one: FusedAttention(heads=one),
        "transformers": lambda one=one: ExternalMaskAttention(heads=one),
    }.items()
]


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def assert_same_weights(module: nn.Module, expected: dict[str, Tensor]) -> None:
    assert dict(module.named_parameters()).keys() == expected.keys()
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, expected[name]), name


def call(module: nn.Module, x: Tensor, *, causal: bool) -> Tensor:
    """Call a module as its certificate states, but implemented independently."""
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    if isinstance(module, nn.MultiheadAttention):
        x = x if module.batch_first else x.transpose(0, 1)
        output = module(x, x, x, attn_mask=hidden if causal else None)[0]
        return output if module.batch_first else output.transpose(0, 1)
    if isinstance(module, ExternalMaskAttention):
        return module(x, torch.zeros(hidden.shape).to(x).masked_fill(hidden, -torch.inf))[0]
    return module(x)


# --- every pair of types ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "into"), pairs(ONE_HEAD, BIDIRECTIONAL, SEPARATE_HEADS, MIXED_HEADS) + UPWARD
)
def test_filled_module_has_equal_outputs_and_gradients_and_converts_back(make, into):
    source, target = make(), into()
    before = parameters_of(source)
    filled, certificate = convert(source, target)
    assert filled is target
    assert certificate.exact
    assert_same_weights(source, before)
    assert_same_function(source, filled, causal=not any(map(is_bidirectional, (source, filled))))

    returned, _ = convert(filled, make())
    assert_same_weights(returned, before)


def is_bidirectional(module: nn.Module) -> bool:
    shipped = isinstance(module, ShippedAttention) and not module.causal
    return shipped or isinstance(module, SelfAttentionV1 | SelfAttentionV2)


def assert_same_function(source: nn.Module, target: nn.Module, *, causal: bool) -> None:
    """Compare outputs and gradients for an input that the certificate does not use."""
    outputs, gradients = [], []
    for module in (source, target):
        x = torch.linspace(-2, 2, 3 * (T - 1) * D, dtype=torch.float64).sin().view(3, T - 1, D)
        x.requires_grad_()
        output = call(copy.deepcopy(module).double().eval(), x, causal=causal)
        output.square().sum().backward()
        outputs.append(output)
        gradients.append(x.grad)
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients)


NEW = [
    (SelfAttentionV1(D, 5), SelfAttentionV2),
    (SelfAttentionV1(D, D), nn.MultiheadAttention),
    (SelfAttentionV2(D, 5), SelfAttentionV1),
    (SelfAttentionV2(D, D, qkv_bias=True), nn.MultiheadAttention),
    (CausalAttention(D, 5, **CAUSAL_SIZES), MultiHeadAttentionWrapper),
    (CausalAttention(D, 5, **CAUSAL_SIZES), MultiHeadAttention),
    (CausalAttention(D, 5, **CAUSAL_SIZES), EinsumMultiHeadAttention),
    (CausalAttention(D, D, **CAUSAL_SIZES), nn.MultiheadAttention),
    (MultiHeadAttentionWrapper(D, 5, num_heads=1, **CAUSAL_SIZES), CausalAttention),
    (MultiHeadAttentionWrapper(D, 5, num_heads=3, **CAUSAL_SIZES), MultiHeadAttention),
    (MultiHeadAttentionWrapper(D, 5, num_heads=3, **CAUSAL_SIZES), EinsumMultiHeadAttention),
    (MultiHeadAttentionWrapper(D, 4, num_heads=2, **CAUSAL_SIZES), nn.MultiheadAttention),
    (MultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES), nn.MultiheadAttention),
    (EinsumMultiHeadAttention(D, 6, num_heads=H, **CAUSAL_SIZES), MultiHeadAttentionWrapper),
    (EinsumMultiHeadAttention(D, 6, num_heads=H, **CAUSAL_SIZES), MultiHeadAttention),
    (MultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES), ShippedAttention),
    (EinsumMultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES), ShippedAttention),
    (SelfAttentionV2(D, D), ShippedAttention),
    (torch_attention(), ShippedAttention),
    (ShippedAttention(D, H, causal=False), nn.MultiheadAttention),
    (ShippedAttention(D, H, bias=True), ShippedAttention),
    (FusedAttention(), MultiHeadAttention),
    (FusedAttention(bias=False), nn.MultiheadAttention),
    (ExternalMaskAttention(), MultiHeadAttention),
    (ExternalMaskAttention(), nn.MultiheadAttention),
]


@pytest.mark.parametrize(
    ("source", "cls"), NEW, ids=[f"{type(s).__name__} → {c.__name__}" for s, c in NEW]
)
def test_new_module_is_built_with_the_sources_sizes(source, cls):
    built, certificate = convert(source, cls)
    assert type(built) is cls
    assert certificate.exact
    assert getattr(built, "context_length", T) == T


def test_values_may_differ_in_size_from_keys():
    source = EinsumMultiHeadAttention(D, 6, num_heads=H, key_dim=5, **CAUSAL_SIZES)
    built, _ = convert(source, EinsumMultiHeadAttention)
    assert (built.key_dim, built.value_dim) == (5, 3)
    assert_same_weights(built, parameters_of(source))


def test_a_users_module_with_the_textbooks_names_converts():
    """Modules are recognized by their attributes, as in this module from a notebook."""

    class Notebook(nn.Module):
        def __init__(self, d_in, d_out, context_length, dropout, num_heads):
            super().__init__()
            self.num_heads = num_heads
            self.W_query, self.W_key = nn.Linear(d_in, d_out), nn.Linear(d_in, d_out)
            self.W_value, self.out_proj = nn.Linear(d_in, d_out), nn.Linear(d_out, d_out)
            self.dropout = nn.Dropout(dropout)
            self.register_buffer("mask", torch.ones(context_length, context_length).triu(1))

        def forward(self, x):
            B, tokens, _ = x.shape
            q, k, v = (
                layer(x).view(B, tokens, self.num_heads, -1).transpose(1, 2)
                for layer in (self.W_query, self.W_key, self.W_value)
            )
            scores = q @ k.transpose(2, 3)
            scores.masked_fill_(self.mask.bool()[:tokens, :tokens], -torch.inf)
            weights = self.dropout(torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1))
            return self.out_proj((weights @ v).transpose(1, 2).reshape(B, tokens, -1))

    built, certificate = convert(Notebook(3, 4, 6, 0.1, 2), MultiHeadAttention)
    assert certificate.exact
    assert (built.context_length, built.dropout.p, built.num_heads) == (6, 0.1, 2)


# --- what is preserved -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_new_module_has_the_sources_dtype_and_differs_only_by_rounding(dtype):
    source = MultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES).to(dtype)
    built, certificate = convert(source, nn.MultiheadAttention)
    assert {parameter.dtype for parameter in built.parameters()} == {dtype} == {certificate.dtype}
    assert certificate.difference_in_dtype <= 8 * torch.finfo(dtype).eps * certificate.scale
    returned, _ = convert(built, MultiHeadAttention, context_length=T)
    assert_same_weights(returned, parameters_of(source))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_new_module_is_on_the_sources_device_and_its_random_state_is_unchanged():
    source = MultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES).cuda()
    state = torch.cuda.get_rng_state()
    built, certificate = convert(source, nn.MultiheadAttention)
    assert certificate.exact
    assert {parameter.device.type for parameter in built.parameters()} == {"cuda"}
    assert torch.equal(torch.cuda.get_rng_state(), state)
    returned, _ = convert(built, MultiHeadAttention, context_length=T)
    assert returned.mask.device.type == "cuda"
    assert_same_weights(returned, parameters_of(source))


def test_global_random_state_is_unchanged_even_if_a_module_draws_in_eval_mode():
    class Drawing(SelfAttentionV2):
        def forward(self, x):
            torch.rand(())
            return super().forward(x)

    drawing = Drawing(D, D)
    state = torch.get_rng_state()
    convert(drawing, SelfAttentionV2)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_memory_is_shared():
    source = SelfAttentionV2(D, D)
    before = parameters_of(source)
    for into in (SelfAttentionV2, SelfAttentionV2(D, D)):
        built, _ = convert(source, into)
        with torch.no_grad():
            for parameter in built.parameters():
                parameter.zero_()
        assert_same_weights(source, before)


def test_a_filled_module_keeps_its_own_mode_dropout_and_frozen_parameters():
    source = CausalAttention(D, D, dropout=0.5, **CAUSAL_SIZES).eval()
    target = CausalAttention(D, D, dropout=0.25, **CAUSAL_SIZES)
    target.W_key.requires_grad_(False)
    convert(source, target)
    assert (source.training, target.training, target.dropout.p) == (False, True, 0.25)
    assert [p.requires_grad for p in target.W_key.parameters()] == [False, False]
    assert target.W_query.weight.requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_a_new_module_has_the_sources_mode_and_dropout(training):
    source = CausalAttention(D, D, dropout=0.5, **CAUSAL_SIZES).train(training)
    built, _ = convert(source, EinsumMultiHeadAttention)
    assert (built.training, built.dropout.training, built.dropout.p) == (training, training, 0.5)
    assert convert(source, nn.MultiheadAttention)[0].dropout == 0.5


def test_a_new_module_has_the_sources_frozen_parameters():
    source = MultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES)
    source.W_query.requires_grad_(False)
    fused, _ = convert(source, nn.MultiheadAttention)
    assert fused.in_proj_weight.requires_grad  # because its keys and values are trainable
    source.requires_grad_(False)
    source.out_proj.requires_grad_(True)
    partly, _ = convert(source, nn.MultiheadAttention)
    assert {name for name, p in partly.named_parameters() if p.requires_grad} == {
        "out_proj.weight",
        "out_proj.bias",
    }


def test_a_parameter_that_the_source_lacks_is_frozen_if_the_whole_source_is():
    source = SelfAttentionV2(D, D)
    assert convert(source, nn.MultiheadAttention)[0].out_proj.weight.requires_grad
    source.requires_grad_(False)
    assert not convert(source, nn.MultiheadAttention)[0].out_proj.weight.requires_grad


def test_context_length_may_grow():
    source = CausalAttention(D, D, **CAUSAL_SIZES)
    built, certificate = convert(source, CausalAttention, context_length=2 * T)
    assert built.mask.shape == (2 * T, 2 * T)
    assert max(shape[1] for shape in certificate.inputs) == T
    assert (
        "context_length is 6 in CausalAttention and 12 in CausalAttention." in certificate.remarks
    )


def test_large_scores_are_certified():
    """V1's weights in [0, 1) produce scores of tens of thousands at the width of a real model."""
    _, certificate = convert(SelfAttentionV1(768, 768), nn.MultiheadAttention)
    assert certificate.exact


# --- refusals -----------------------------------------------------------------------------------------

causal = CausalAttention(D, D, **CAUSAL_SIZES)
split = MultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES)
einsum = EinsumMultiHeadAttention(D, D, num_heads=H, **CAUSAL_SIZES)
wide_keys = EinsumMultiHeadAttention(D, D, num_heads=H, key_dim=5, **CAUSAL_SIZES)
plain_split = MultiHeadAttention(D, D, num_heads=H, context_length=T)


def with_attributes(module: nn.Module, **attributes) -> nn.Module:
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def grouped(kind: str) -> nn.Module:
    if kind == "c_attn":
        return with_attributes(FusedAttention(), c_attn=nn.Linear(D, D + 2 * D // H))
    shared = {name: nn.Linear(D, D // H) for name in ("W_key", "W_value")}
    return with_attributes(MultiHeadAttention(D, D, num_heads=H, context_length=T), **shared)


REFUSALS = {
    "no attention": (nn.Linear(D, D), SelfAttentionV1, "source: expected one of .* received Linear"),
    "no module": (torch.zeros(3), SelfAttentionV1, "source: expected one of .* received Tensor"),
    "target no attention": (split, nn.Linear(D, D), "into: expected one of .* received Linear"),
    "class of unknown constructor": (split, FusedAttention, "into: .* FusedAttention, whose constructor is not known"),
    "no limit to take over": (SelfAttentionV2(D, D), CausalAttention, "context_length: .* has no limit"),
    "output projection": (split, einsum, "an output projection: that of MultiHeadAttention is not the identity"),
    "output width": (
        with_attributes(MultiHeadAttention(D, D, num_heads=H, context_length=T), out_proj=nn.Linear(D, 5)),
        split,
        "outputs of 5 features, as of MultiHeadAttention; received 8",
    ),
    "source sees the future": (SelfAttentionV2(D, D), causal, "sees the future, as Self.* masks the future"),
    "target sees the future": (causal, SelfAttentionV2, "masks the future, as CausalAttention .* sees the future"),
    "keys of another size": (wide_keys, MultiHeadAttention, "queries and keys = 5, .* Only EinsumMultiHeadAttention"),
    "keys of another size, torch": (wide_keys, nn.MultiheadAttention, "queries and keys = 5, .* received 4"),
    "no bias": (split, plain_split, "a query_bias: that of MultiHeadAttention is not zero; .* has none"),
    "no biases at all": (
        SelfAttentionV2(D, D, qkv_bias=True),
        SelfAttentionV1,
        "a query_bias: that of SelfAttentionV2 is not zero; received SelfAttentionV1",
    ),
    "output bias": (
        plain_split,
        nn.MultiheadAttention(D, H, bias=False),
        "output_bias: that of MultiHeadAttention is not zero",
    ),
    "kdim": (nn.MultiheadAttention(D, H, kdim=5), split, "kdim: expected 8: .* received 5"),
    "vdim": (split, nn.MultiheadAttention(D, H, vdim=5), "vdim: expected 8: .* received 5"),
    "add_bias_kv": (nn.MultiheadAttention(D, H, add_bias_kv=True), split, "add_bias_kv: expected False"),
    "add_zero_attn": (nn.MultiheadAttention(D, H, add_zero_attn=True), split, "add_zero_attn: expected False"),
    "embed_dim": (
        EinsumMultiHeadAttention(D, 6, num_heads=H, **CAUSAL_SIZES),
        nn.MultiheadAttention,
        "embed_dim for them; received 8 features of tokens, 6 features of all heads' contexts",
    ),
    "d_model": (
        SelfAttentionV2(D, 5),
        ShippedAttention,
        "d_model for them; received 8 features of tokens, 5 features of outputs",
    ),
    "rotary": (ShippedAttention(D, H, rotary=RotaryEmbedding(D // H)), split, "rotary: expected None: plain"),
    "window": (split, ShippedAttention(D, H, window=3), "window: expected None: .* received 3"),
    "soft-cap": (ShippedAttention(D, H, softcap=3.0), split, "softcap: expected None: .* received 3.0"),
    "d_context": (ShippedAttention(D, H, d_context=D), split, "d_context: expected None"),
    "grouped heads, nn": (ShippedAttention(D, H, num_kv_heads=1), split, "keys: expected 8 features, .* received 4"),
    "nn sees the future": (causal, ShippedAttention(D, 1, causal=False), "masks the future, as CausalAttention"),
    "d_in": (causal, CausalAttention(D - 1, D, **CAUSAL_SIZES), "d_in = 8, as in CausalAttention; received 7"),
    "more heads": (split, CausalAttention, "num_heads = 2, as in MultiHeadAttention; received 1 in CausalAttention"),
    "a wrapper's d_out": (
        einsum,
        MultiHeadAttentionWrapper(D, D, num_heads=H, **CAUSAL_SIZES),
        "queries and keys = 4, .* received 8 .* a wrapper's d_out counts one head",
    ),
    "values of another size": (
        EinsumMultiHeadAttention(D, 4, num_heads=H, key_dim=4, **CAUSAL_SIZES),
        einsum,
        "values = 2, as in EinsumMultiHeadAttention; received 4",
    ),
    "grouped heads": (grouped("W_key"), split, "keys: expected 8 features, .* received 4: heads in groups"),
    "grouped heads, fused": (grouped("c_attn"), split, "c_attn: expected 24 features, .* received 16: heads in groups"),
    "heads that do not divide": (
        with_attributes(FusedAttention(), n_head=3),
        split,
        "num_heads: expected a divisor of the 8 features of the query of FusedAttention; received 3",
    ),
    "cross attention": (with_attributes(FusedAttention(), is_cross_attention=True), split, "is_cross_attention: "),
    "no scale": (with_attributes(FusedAttention(), scale_attn_weights=False), split, "scale_attn_weights: "),
    "another scale": (
        with_attributes(FusedAttention(), scale_attn_by_inverse_layer_idx=True),
        split,
        "scale_attn_by_inverse_layer_idx: expected False",
    ),
    "dtype": (split, torch_attention().double(), "torch.float32 on cpu, as the source; received torch.float64 on cpu"),
    "two dtypes": (
        with_attributes(SelfAttentionV2(D, D), W_key=nn.Linear(D, D, bias=False).half()),
        SelfAttentionV1,
        "source: expected weights of one dtype .* torch.float16 on cpu and torch.float32 on cpu",
    ),
    "no weights": (SelfAttentionV2(D, D).to("meta"), SelfAttentionV2, "source: expected weights in memory"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "into", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_refusal_states_its_reason(source, into, reason):
    with pytest.raises(ArgumentError, match=reason) as refusal:
        convert(source, into)
    assert refusal.value.remedy


@pytest.mark.parametrize("into", [nn.MultiheadAttention, causal])
def test_context_length_without_effect_is_refused(into):
    with pytest.raises(ArgumentError, match="context_length: expected None"):
        convert(causal, into, context_length=12)


def test_weights_without_effect_need_not_be_converted():
    source = MultiHeadAttention(D, D, num_heads=H, context_length=T, qkv_bias=True)
    with torch.no_grad():
        source.out_proj.weight.copy_(torch.eye(D))
        for layer in (source.W_query, source.W_key, source.W_value, source.out_proj):
            layer.bias.zero_()
    target = EinsumMultiHeadAttention(D, D, num_heads=H, context_length=T)
    _, certificate = convert(source, target)
    not_converted = {remark.split()[0] for remark in certificate.remarks}
    assert not_converted == {"output", "output_bias", "query_bias", "key_bias", "value_bias"}


# --- the certificate ----------------------------------------------------------------------------------


def test_certificate_lists_inputs_and_carried_parameters():
    source = MultiHeadAttentionWrapper(D, D // H, num_heads=H, context_length=T)
    _, certificate = convert(source, nn.MultiheadAttention)
    assert (certificate.source, certificate.target) == (
        "MultiHeadAttentionWrapper",
        "MultiheadAttention",
    )
    assert certificate.inputs == ((2, 1, D), (2, 2, D), (2, 3, D), (2, T, D))
    assert certificate.carried == (
        ("heads.0.W_query.weight … heads.1.W_query.weight", "in_proj_weight[0:8]"),
        ("heads.0.W_key.weight … heads.1.W_key.weight", "in_proj_weight[8:16]"),
        ("heads.0.W_value.weight … heads.1.W_value.weight", "in_proj_weight[16:24]"),
        ("identity", "out_proj.weight"),
    )
    assert "attn_mask=" in certificate.target_call
    assert any("causal only if its call asks for it" in remark for remark in certificate.remarks)


def test_certificates_call_is_valid_python():
    source = CausalAttention(D, D, **CAUSAL_SIZES).eval()
    x = torch.randn(2, T, D)
    for into in (nn.MultiheadAttention, ExternalMaskAttention(heads=1), FusedAttention(heads=1)):
        module, certificate = convert(source, into)
        output = eval(
            certificate.target_call, {"module": module.eval(), "x": x, "T": T, "torch": torch}
        )
        torch.testing.assert_close(output, source(x))


def test_certificate_prints_its_verdict_and_every_name():
    _, certificate = convert(split, nn.MultiheadAttention)
    text = str(certificate)
    assert text.startswith("MultiHeadAttention → MultiheadAttention: the same function\n")
    for expected in (
        "float64",
        "1e-09",
        "torch.float32",
        "in_proj_weight[16:24]",
        *certificate.remarks,
    ):
        assert expected in text


@pytest.mark.parametrize("difference", [1e-6, float("nan"), float("inf")])
def test_certificate_is_not_exact_beyond_rounding(difference):
    _, certificate = convert(split, nn.MultiheadAttention)
    spoilt = dataclasses.replace(certificate, difference=difference)
    assert isinstance(spoilt, Certificate)
    assert not spoilt.exact
    assert "NOT the same function" in str(spoilt)


def test_a_wrong_weight_map_is_detected_and_the_target_is_unchanged(monkeypatch):
    right = ParameterSlice.view

    def forgets_to_transpose(part: ParameterSlice, module: nn.Module) -> Tensor:
        return right(dataclasses.replace(part, transposed=False), module)

    monkeypatch.setattr(ParameterSlice, "view", forgets_to_transpose)
    target = SelfAttentionV2(D, D)
    before = parameters_of(target)
    with pytest.raises(ArgumentError, match="NOT the same function"):
        convert(SelfAttentionV1(D, D), target)
    assert_same_weights(target, before)


class WindowAttention(CausalAttention):
    def forward(self, x):
        self.mask = self.mask.triu(-2)
        return super().forward(x)


class RotatedAttention(CausalAttention):
    def forward(self, x):
        return super().forward(x + torch.arange(x.shape[-2], dtype=x.dtype)[:, None])


@pytest.mark.parametrize("cls", [WindowAttention, RotatedAttention])
def test_a_module_that_computes_more_than_its_weights_determine_is_detected(cls):
    with pytest.raises(ArgumentError, match=re.escape("a position encoding")):
        convert(cls(D, D, **CAUSAL_SIZES), CausalAttention)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_certified(value):
    source = SelfAttentionV2(D, D)
    nn.init.constant_(source.W_value.weight, value)
    with pytest.raises(ArgumentError, match="not finite"):
        convert(source, SelfAttentionV1)


# --- transformers' own module -------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_gpt2_of_transformers(implementation):
    transformers = pytest.importorskip(
        "transformers", reason="the published GPT-2: pip install transformers"
    )
    config = transformers.GPT2Config(
        n_embd=D, n_head=H, n_layer=1, n_positions=T, attn_implementation=implementation
    )
    gpt2 = transformers.GPT2Model(config).h[0].attn
    for parameter in gpt2.parameters():
        nn.init.normal_(parameter)
    before = parameters_of(gpt2)
    built, certificate = convert(gpt2, MultiHeadAttention)
    assert certificate.exact
    assert built.context_length == T
    nn.init.zeros_(gpt2.c_attn.weight)
    convert(built, gpt2)
    assert_same_weights(gpt2, before)
