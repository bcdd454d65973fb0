"""The inference path of `nn.MultiheadAttention` and `nn.TransformerEncoder`, padded batches included."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from heedful import accelerate
from heedful.kernels.native import library

pytestmark = [
    pytest.mark.skipif(
        library.missing is not None, reason=f"the native library is missing: {library.missing}"
    ),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Converting mask without torch.bool dtype"),
]
PADDING = torch.arange(90) >= torch.tensor([90, 31, 1])[:, None]
CAUSAL = torch.ones(90, 90, dtype=torch.bool).triu(1)
MASKS = {
    "none": {},
    "padding": {"src_key_padding_mask": PADDING},
    "padding on the left": {"src_key_padding_mask": PADDING.flip(1)},
    "causal": {"mask": CAUSAL, "is_causal": True},
    "causal and padded": {"mask": CAUSAL, "src_key_padding_mask": PADDING},
    "for each head": {"mask": torch.rand(12, 90, 90).triu(1) > 0.5},
    "numbers": {"mask": torch.zeros(90, 90).masked_fill(CAUSAL, -torch.inf)},
}


def encoder(layers=2, **options):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options)
    nested = not options.get("norm_first", False)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested).eval()


def assert_as_exact(ours, theirs, exact):
    error, their_error = (torch.dist(x.double(), exact).item() for x in (ours, theirs))
    assert error <= 1.5 * their_error + 1e-6 * exact.norm().item()


@pytest.mark.parametrize("mask", MASKS)
def test_an_encoder_returns_the_same(mask):
    module, tokens = encoder(), torch.randn(3, 90, 32)
    with torch.inference_mode():
        theirs = module(tokens, **MASKS[mask])
        with accelerate() as acceleration:
            ours = module(tokens, **MASKS[mask])
        options = {
            name: x.double() if name == "mask" and x.is_floating_point() else x
            for name, x in MASKS[mask].items()
        }
        exact = deepcopy(module).double()(tokens.double(), **options)
    assert (acceleration.report().served, acceleration.report().passed_on) == (2, 0)
    assert_as_exact(ours, theirs, exact)
    assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)


@pytest.mark.parametrize("options", [{"norm_first": True}, {"activation": "gelu"}], ids=str)
def test_encoders_with_other_layers(options):
    module, tokens = encoder(**options), torch.randn(3, 90, 32)
    with torch.no_grad():
        theirs = module(tokens, src_key_padding_mask=PADDING)
        with accelerate() as acceleration:
            ours = module(tokens, src_key_padding_mask=PADDING)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert acceleration.report().served == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_other_dtypes(dtype):
    module, tokens = encoder().to(dtype), torch.randn(3, 90, 32, dtype=dtype)
    with torch.inference_mode():
        exact = deepcopy(module).double()(tokens.double(), src_key_padding_mask=PADDING)
        theirs = module(tokens, src_key_padding_mask=PADDING)
        with accelerate() as acceleration:
            ours = module(tokens, src_key_padding_mask=PADDING)
    assert acceleration.report().served == 2
    assert_as_exact(ours, theirs, exact)


def test_nested_tensors_of_any_lengths():
    module = encoder(1)
    nested = torch.nested.nested_tensor([torch.randn(n, 32) for n in (7, 1, 300, 64)])
    with torch.inference_mode():
        theirs = module(nested)
        with accelerate() as acceleration:
            ours = module(nested)
    assert acceleration.report().served == 1
    assert ours.is_nested
    for our, their in zip(ours.unbind(), theirs.unbind(), strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [None, PADDING], ids=["full", "padded"])
def test_multihead_attention_without_weights(mask):
    module, tokens = nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(3, 90, 32)
    options = {"need_weights": False, "key_padding_mask": mask}
    with torch.inference_mode():
        theirs = module(tokens, tokens, tokens, **options)
        with accelerate() as acceleration:
            ours = module(tokens, tokens, tokens, **options)
    assert acceleration.report().served == 1
    assert ours[1] is theirs[1] is None
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("average", [True, False])
def test_weights_are_pytorchs(average):
    module, tokens = nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(3, 90, 32)
    options = {"average_attn_weights": average, "key_padding_mask": PADDING}
    with torch.inference_mode():
        theirs = module(tokens, tokens, tokens, **options)
        with accelerate() as acceleration:
            ours = module(tokens, tokens, tokens, **options)
    assert all(map(torch.equal, ours, theirs))
    ((kind, count),) = acceleration.report().calls
    assert (count, kind.passed_on) == (1, "the weights are returned, too")


def test_float64_is_passed_on_unchanged():
    module, tokens = encoder().double(), torch.randn(3, 90, 32, dtype=torch.float64)
    with torch.inference_mode():
        theirs = module(tokens, src_key_padding_mask=PADDING)
        with accelerate() as acceleration:
            assert torch.equal(module(tokens, src_key_padding_mask=PADDING), theirs)
    assert acceleration.report().passed_on == 2


def test_the_fast_path_remains_enabled_or_disabled():
    module, tokens = encoder(), torch.randn(3, 90, 32)
    for enabled in (False, True):
        torch.backends.mha.set_fastpath_enabled(enabled)
        with torch.inference_mode(), accelerate() as acceleration:
            module(tokens)
        assert torch.backends.mha.get_fastpath_enabled() == enabled
        assert acceleration.report().served == 2


@pytest.mark.parametrize(
    "spoil",
    [
        {"num_head": 5},
        {"qkv_bias": torch.zeros(95)},
        {"mask": torch.ones(2, 90, dtype=torch.bool), "mask_type": 1},
        {"proj_weight": torch.zeros(32, 32, dtype=torch.float64)},
    ],
    ids=str,
)
def test_arguments_that_pytorch_refuses_are_still_refused(spoil):
    tokens = torch.randn(3, 90, 32)
    arguments = {
        "query": tokens,
        "key": tokens,
        "value": tokens,
        "embed_dim": 32,
        "num_head": 4,
        "qkv_weight": torch.zeros(96, 32),
        "qkv_bias": torch.zeros(96),
        "proj_weight": torch.zeros(32, 32),
        "proj_bias": torch.zeros(32),
        "mask": None,
        "need_weights": False,
        "mask_type": None,
    } | spoil

    def call():
        torch._native_multi_head_attention(**arguments)

    with pytest.raises(RuntimeError) as theirs:
        call()
    with accelerate(), pytest.raises(RuntimeError) as ours:
        call()
    assert str(ours.value) == str(theirs.value)
