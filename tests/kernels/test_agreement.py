"""Every kernel agrees with the float64 reference in outputs and gradients, and the reference with the definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful import Causal, Dense, Padding, Sinks, Window, attention
from heedful.kernels.native import library
from oracle import attention_row_by_row
from strategies import Call, calls

NATIVE = ["native"] if library.missing is None else []
KERNELS = ["reference", "online", "torch_sdpa", "auto", *NATIVE]
ISAS = library.isas() if library.missing is None else []
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 8e-3}


def run(call: Call, kernel: str, *, lse: bool = False):
    """Return output, lse if requested, and the gradients of all tensors for a fixed cotangent."""
    result = attention(**call.arguments(), kernel=kernel, return_lse=lse)
    outputs = list(result) if lse else [result]
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros((), dtype=torch.float64)
    for output in outputs:
        cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        total = total + (output.double().masked_fill(~output.isfinite(), 0.0) * cotangent).sum()
    return outputs, torch.autograd.grad(total, list(call.tensors.values()))


def assert_agrees(call: Call, kernel: str, *, lse: bool) -> None:
    dtype = call.tensors["query"].dtype
    outputs, gradients = run(call.to(dtype), kernel, lse=lse)
    expected_outputs, expected_gradients = run(call.to(torch.float64), "reference", lse=lse)
    assert outputs[0].dtype == dtype
    names = ["output", "lse"][: len(outputs)] + list(call.tensors)
    for name, ours, exact in zip(
        names, [*outputs, *gradients], [*expected_outputs, *expected_gradients], strict=True
    ):
        assert ours.shape == exact.shape
        size = exact[exact.isfinite()].abs().max().item() if exact.isfinite().any() else 0.0
        if name == "bias":  # a sum over rows, each with the rounding error of an output
            size = max(size, outputs[0][..., 0].numel() ** 0.5 / 2)
        tolerance = TOLERANCE[dtype] * max(size, 1.0)
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=tolerance)


@given(calls(dtype=torch.float64, max_size=6))
def test_the_reference_agrees_with_the_definition(call):
    output, lse = attention(**call.arguments(), kernel="reference", return_lse=True)
    expected_output, expected_lse = attention_row_by_row(**call.arguments())
    torch.testing.assert_close(output, expected_output, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-10, atol=1e-10)


@given(calls())
def test_the_reference_in_float32(call):
    assert_agrees(call, "reference", lse=True)


@given(calls())
def test_online(call):
    assert_agrees(call, "online", lse=True)


@pytest.mark.parametrize("block", [1, 3])
@given(call=calls(max_size=8))
@settings(max_examples=40)
def test_online_over_several_blocks(block, call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heedful.kernels.online.BLOCK", block)
        assert_agrees(call, "online", lse=True)


@given(calls(extras=("bias",)))
def test_torch_sdpa(call):
    assert_agrees(call, "torch_sdpa", lse=False)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@given(data=st.data())
@settings(max_examples=60)
def test_native(isa, dtype, data):
    call = data.draw(calls(dtype=dtype))
    before = library.isa
    library.use_isa(isa)
    try:
        assert_agrees(call, "native", lse=dtype == torch.float32)
    finally:
        library.use_isa(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", ["reference", "online", "torch_sdpa"])
@given(data=st.data())
@settings(max_examples=30)
def test_small_dtypes(kernel, dtype, data):
    extras = ("bias",) if kernel == "torch_sdpa" else ("bias", "softcap", "sinks")
    assert_agrees(data.draw(calls(dtype=dtype, extras=extras)), kernel, lse=False)


@given(calls())
@settings(max_examples=50)
def test_auto_agrees_too(call):
    assert_agrees(call, "auto", lse=False)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"mask": (Causal(align="end") & Window(30)) | Sinks(3), "softcap": 3.0},
            marks=pytest.mark.slow,  # compiled
        ),
        {
            "mask": Padding([0, 150], side="left") & Causal(align="end"),
            "bias": torch.randn(4, 1, 200),
        },
    ],
    ids=["two ranges, soft-cap", "fully masked rows, bias"],
)
def test_flex_on_cpu(options):
    query, key, value = (
        torch.randn(2, 4, 100, 16),
        torch.randn(2, 2, 200, 16),
        torch.randn(2, 2, 200, 32),
    )
    ours = attention(query, key, value, kernel="flex", **options)
    exact = attention(query, key, value, kernel="reference", **options)
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", ["reference", "online"])
@pytest.mark.parametrize("lse", [pytest.param(False, marks=pytest.mark.slow), True])
@given(call=calls(dtype=torch.float64, max_size=3))
@settings(max_examples=12)
def test_gradcheck_and_gradgradcheck(kernel, lse, call):
    call = call.to(torch.float64)
    names = list(call.tensors)

    def function(*tensors):
        arguments = dict(zip(names, tensors, strict=True)) | call.options
        result = attention(**arguments, kernel=kernel, return_lse=lse)
        return (result[0], result[1].masked_fill(~result[1].isfinite(), 0.0)) if lse else result

    tensors = tuple(call.tensors.values())
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_that_sees_nothing_gives_zeros_and_gradients_of_zero(kernel, dtype):
    query, key, value = (torch.randn(2, 2, 4, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    shown = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    shown[0, :, 1] = shown[1] = False
    output = attention(query, key, value, Dense(shown), kernel=kernel)
    assert (output[0, :, 1] == 0).all()
    assert (output[1] == 0).all()
    output.sum().backward()
    assert (query.grad[0, :, 1] == 0).all()
    for tensor in (query, key, value):
        assert tensor.grad.isfinite().all()
        assert (tensor.grad[1] == 0).all()
    if kernel not in ("torch_sdpa", "auto"):
        _, lse = attention(query, key, value, Dense(shown), kernel=kernel, return_lse=True)
        assert (lse[0, :, 1] == -torch.inf).all()
        assert lse[0, :, 0].isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "mask", [Padding([3, 5]), Padding([3, 5], "left"), Window(2, align="start")]
)
def test_keys_that_no_query_may_see_are_never_read(kernel, mask):
    query = torch.randn(2, 2, 4, 8, requires_grad=True)
    key, value = torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    clean = attention(query, key, value, mask, kernel=kernel)
    unseen = ~mask.dense(4, 6, batch=2).expand(2, 1, 4, 6).any(dim=2)[:, 0]
    assert unseen.any()
    key.transpose(1, 2)[unseen] = value.transpose(1, 2)[unseen] = torch.nan
    key.requires_grad_(), value.requires_grad_()
    poisoned = attention(query, key, value, mask, kernel=kernel)
    assert torch.equal(poisoned, clean)
    for gradient in torch.autograd.grad(poisoned.sum(), (query, key, value)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kernel", ["reference", "online", *NATIVE])
@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -1e31])
@pytest.mark.parametrize("T", [6, 90])
def test_the_lowest_scores_are_scores_too(kernel, lowest, T):
    call = Call(
        {name: torch.randn(1, 2, T, 8) for name in ("query", "key", "value")}
        | {"bias": torch.full((T, T), lowest)},
        {"mask": Causal()},
    )
    assert_agrees(call, kernel, lse=True)


@pytest.mark.parametrize("kernel", ["reference", "online", *NATIVE])
def test_a_scale_of_zero_gives_equal_weights_to_keys_of_any_size(kernel):
    query, key, value = (torch.rand(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    output = attention(query * 1e38, key * 1e38, value, scale=0.0, kernel=kernel)
    torch.testing.assert_close(output, value.mean(dim=2, keepdim=True).expand_as(output))
    for gradient in torch.autograd.grad(output.sum(), (query, key)):
        assert (gradient == 0).all()


@pytest.mark.parametrize("scale", [0.0, -0.5])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_scale_that_is_not_positive_with_a_causal_mask(kernel, scale):
    call = Call(
        {name: torch.randn(1, 2, 12, 8) for name in ("query", "key", "value")},
        {"mask": Causal(), "scale": scale},
    )
    assert_agrees(call, kernel, lse=False)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("strides", [(200, 200, 2, 1), (1, 1, 0, 1), (5, 1, 2, 1)])
def test_rows_that_overlap_in_memory(kernel, dtype, strides):
    windows = torch.randn(400, dtype=dtype).as_strided((2, 1, 69, 64), strides)
    leaves = [windows.detach().requires_grad_() for _ in range(3)]
    copies = [windows.clone().requires_grad_() for _ in range(3)]
    for views, own in zip(
        *(
            torch.autograd.grad(attention(*inputs, kernel=kernel).float().square().sum(), inputs)
            for inputs in (leaves, copies)
        ),
        strict=True,
    ):
        atol = TOLERANCE[dtype] * max(own.abs().max().item(), 1.0)
        torch.testing.assert_close(views, own, rtol=0, atol=atol)


@pytest.mark.parametrize("kernel", ["reference", "online", *NATIVE])
def test_dropping_every_weight_leaves_gradients_of_zero(kernel):
    query, key, value = (torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3))
    output = attention(query, key, value * 1e30, dropout_p=1.0, kernel=kernel)
    for tensor in (output, *torch.autograd.grad(output.sum(), (query, key, value))):
        assert (tensor == 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sizes", [(2, 2, 0, 4), (2, 2, 4, 0), (0, 2, 4, 4), (2, 0, 4, 4)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_empty_tensors(kernel, sizes, dtype):
    B, H, Tq, Tk = sizes
    query, key, value = (
        torch.randn(B, H, T, D, dtype=dtype) for T, D in ((Tq, 8), (Tk, 8), (Tk, 6))
    )
    tensors = [tensor.requires_grad_() for tensor in (query, key, value)]
    output = attention(*tensors, Causal(align="end"), kernel=kernel)
    assert output.shape == (B, H, Tq, 6)
    assert (output == 0).all()
    for gradient in torch.autograd.grad(output.sum(), tensors):
        assert (gradient == 0).all()


@pytest.mark.parametrize("kernel", ["reference", "online", *NATIVE])
def test_a_bias_alone_has_a_gradient_even_without_keys(kernel):
    query, key, bias = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 0, 8), torch.randn(4, 0)
    output = attention(query, key, key, bias=bias.requires_grad_(), kernel=kernel)
    assert torch.autograd.grad(output.sum(), bias)[0].shape == bias.shape


def test_a_problem_too_large_for_the_reference_goes_block_by_block():
    query = torch.empty(1, 64, 4096, 8, device="meta", dtype=torch.float64)
    assert heedful.explain(query, query, query).kernel == "online"
