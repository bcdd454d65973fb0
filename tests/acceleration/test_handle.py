"""Tests of `accelerate`: results, layouts and errors are PyTorch's, and its own kernels return bit for bit."""

import subprocess
import sys
import threading
import warnings
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful import KernelError, accelerate
from heedful.kernels.native import library

pytestmark = pytest.mark.skipif(
    library.missing is not None, reason=f"the native library is missing: {library.missing}"
)
aten = torch.ops.aten
flash = aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
MAX_ERROR_RATIO = 1.5  # relative to PyTorch's error, both compared with float64


def draw(B=2, Hq=4, Hkv=2, Tq=70, Tk=90, D=16, dtype=torch.float32):
    """Return query, key and value with tokens first in memory, as models compute them."""
    sizes = ((Hq, Tq), (Hkv, Tk), (Hkv, Tk))
    return [torch.randn(B, T, H, D, dtype=dtype).transpose(1, 2) for H, T in sizes]


def causal_and_padded(B=2, Tq=70, Tk=90):
    """Return a Boolean mask (B, 1, Tq, Tk) of at most two runs, in which some queries of the last entry see nothing."""
    shown = torch.ones(B, 1, Tq, Tk, dtype=torch.bool).tril(Tk - Tq)
    shown[-1, ..., :25] = False
    return shown


MASKS = {
    "none": dict,
    "causal": lambda: {"is_causal": True},
    "runs": lambda: {"attn_mask": causal_and_padded()},
    "keys alone": lambda: {"attn_mask": causal_and_padded()[:, :, -1:]},
    "scattered": lambda: {"attn_mask": torch.rand(2, 4, 70, 90) > 0.5},
    "one for all": lambda: {"attn_mask": causal_and_padded()[0, 0]},
    "numbers": lambda: {"attn_mask": torch.randn(1, 4, 70, 90)},
    "a key for all": lambda: {"attn_mask": torch.randn(2, 1, 70, 1)},
}


def attend(tensors, **options):
    """Return the output of PyTorch's attention and the gradients of query, key and value."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    output = F.scaled_dot_product_attention(*leaves, enable_gqa=True, **options)
    weights = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype)
    return output, *torch.autograd.grad((output * weights).sum(), leaves)


def distance(results, exact):
    return [torch.dist(a.double(), b).item() for a, b in zip(results, exact, strict=True)]


def strides(tensor):
    """Return the strides of the dimensions with more than one entry."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def assert_no_worse(ours, theirs, exact, rounding=1e-7):
    """Check that each error is at most `MAX_ERROR_RATIO` times PyTorch's, or only rounding."""
    for our, their, norm in zip(
        distance(ours, exact),
        distance(theirs, exact),
        [t.norm().item() for t in exact],
        strict=True,
    ):
        assert our <= MAX_ERROR_RATIO * their + rounding * norm


# --- the numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", MASKS)
def test_outputs_and_gradients_are_as_accurate_as_pytorchs(mask, dtype):
    tensors, options = draw(dtype=dtype), MASKS[mask]()
    additive = options.get("attn_mask", torch.ones(1, dtype=torch.bool))
    if additive.dtype != torch.bool:
        options["attn_mask"] = additive.to(dtype)
    in_double = {name: mask.double() for name, mask in options.items() if name == "attn_mask"}
    exact = attend(
        [tensor.double() for tensor in tensors],
        **(options | in_double if additive.dtype != torch.bool else options),
    )
    theirs = attend(tensors, **options)
    with accelerate() as acceleration:
        ours = attend(tensors, **options)
    assert acceleration.report().served == 2
    assert_no_worse(ours, theirs, exact)
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == their.dtype
        assert strides(our) == strides(their)


@pytest.mark.parametrize("contiguous", [True, False], ids=["heads first", "tokens first"])
@pytest.mark.parametrize("sizes", [{}, {"Tq": 1}, {"Hq": 1, "Hkv": 1}, {"B": 1, "D": 7}], ids=str)
def test_memory_layout_is_that_of_pytorchs_kernels(sizes, contiguous):
    tensors = [t.contiguous() if contiguous else t for t in draw(**sizes)]
    theirs = flash(*tensors)
    with accelerate():
        ours = flash(*tensors)
        ours_back = flash_backward(theirs[0], *tensors, *ours, 0.0, False)
    theirs_back = flash_backward(theirs[0], *tensors, *theirs, 0.0, False)
    for our, their in zip((*ours, *ours_back), (*theirs, *theirs_back), strict=True):
        assert strides(our) == strides(their)
        torch.testing.assert_close(our, their)


def test_tensors_whose_rows_overlap():
    memory = torch.randn(3, 1, 2, 70 + 15)
    tensors = memory.unfold(3, 16, 1).unbind()  # each row starts one number after the last
    exact = attend([tensor.double() for tensor in tensors])
    with accelerate() as acceleration:
        results = attend(tensors)
    assert acceleration.report().served == 2
    for ours, theirs in zip(results, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-4)


def test_a_query_that_sees_nothing_has_zero_output_and_gradient():
    shown = torch.ones(70, 90, dtype=torch.bool)
    shown[3] = shown[68] = False
    with accelerate():
        output, grad_query, *others = attend(draw(), attn_mask=shown)
    for row in (3, 68):
        assert (output[:, :, row] == 0).all()
        assert (grad_query[:, :, row] == 0).all()
    assert all(tensor.isfinite().all() for tensor in (output, grad_query, *others))


@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -1e30])
def test_masks_of_very_negative_numbers_keep_their_meaning(lowest):
    tensors, shown = draw(), causal_and_padded()
    attn_mask = torch.zeros(shown.shape).masked_fill_(~shown, lowest)
    with sdpa_kernel(
        SDPBackend.MATH
    ):  # PyTorch's flash kernel takes weights of 1 for 1 / Tk in its backward pass
        exact = attend([tensor.double() for tensor in tensors], attn_mask=attn_mask.double())
    with accelerate() as acceleration:
        ours = attend(tensors, attn_mask=attn_mask)  # in some rows, every key has the lowest number
        whole = attend(tensors, attn_mask=attn_mask[:1])
    for our, in_double in zip(ours, exact, strict=True):
        torch.testing.assert_close(our.double(), in_double, rtol=0, atol=1e-5)
    for our, their in zip(whole, attend(tensors, attn_mask=attn_mask[:1]), strict=True):
        torch.testing.assert_close(our, their)
    assert acceleration.report().served == 4


@pytest.mark.parametrize("mask", MASKS)
def test_a_backward_pass_can_follow_the_other_kernels_forward(mask):
    tensors, options = draw(), MASKS[mask]()
    attn_mask = options.get("attn_mask")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape).masked_fill_(~attn_mask, -torch.inf)
    attn_mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.dim())]
    causal = "is_causal" in options
    grad = torch.randn(tensors[0].shape)
    theirs = flash(*tensors, 0.0, causal, attn_mask=attn_mask)
    with accelerate():
        ours = flash(*tensors, 0.0, causal, attn_mask=attn_mask)
        theirs_then_ours = flash_backward(grad, *tensors, *theirs, 0.0, causal, attn_mask=attn_mask)
    ours_then_theirs = flash_backward(grad, *tensors, *ours, 0.0, causal, attn_mask=attn_mask)
    theirs_alone = flash_backward(grad, *tensors, *theirs, 0.0, causal, attn_mask=attn_mask)
    torch.testing.assert_close(ours[1], theirs[1])
    torch.testing.assert_close(theirs_then_ours, theirs_alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours_then_theirs, theirs_alone, rtol=1e-4, atol=1e-5)


# --- calls that are passed on or not replaced --------------------------------------------------------


def test_float64_is_passed_on_unchanged():
    tensors = draw(dtype=torch.float64)
    theirs = attend(tensors, is_causal=True)
    with accelerate() as acceleration:
        ours = attend(tensors, is_causal=True)
    assert all(map(torch.equal, ours, theirs))
    report = acceleration.report()
    assert (report.served, report.passed_on) == (0, 2)
    assert "no float64" in str(report)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda q, k, v: ((q, k, v, 0.5), {}),
        lambda q, k, v: ((q, k, v[..., :3]), {}),
        lambda q, k, v: ((q[0], k[0], v[0]), {}),
        lambda q, k, v: ((q, k, v), {"attn_mask": torch.ones(70, 90, dtype=torch.bool)}),
        lambda q, k, v: ((q, k, v), {"attn_mask": torch.ones(1, 70, 90)}),
    ],
    ids=["dropout", "value size", "3-D", "Boolean mask", "3-D mask"],
)
def test_arguments_that_pytorch_refuses_are_still_refused(spoil):
    arguments, options = spoil(*draw())
    with pytest.raises(RuntimeError) as theirs:
        flash(*arguments, **options)
    with accelerate() as acceleration, pytest.raises(RuntimeError) as ours:
        flash(*arguments, **options)
    assert str(ours.value) == str(theirs.value)
    assert acceleration.report().passed_on == 1


def test_pytorchs_kernel_is_used_if_it_is_faster(monkeypatch):
    monkeypatch.setattr("heedful.dispatch.AMX", True)
    monkeypatch.setattr("heedful.kernels.native.library.isa", "avx512bf16")
    with accelerate() as acceleration:
        attend(draw(dtype=torch.bfloat16))
        attend(draw(dtype=torch.float32))
    report = acceleration.report()
    assert (report.served, report.passed_on) == (2, 2)
    assert "PyTorch's kernel is faster here" in str(report)


# --- replacing and restoring ---------------------------------------------------------------------------


def test_removal_restores_pytorchs_results_bit_by_bit():
    tensors = draw(Tq=200, Tk=200)
    before = attend(tensors)
    acceleration = accelerate()
    during = attend(tensors)
    acceleration.remove()
    after = attend(tensors)
    assert not all(map(torch.equal, during, before))
    assert all(map(torch.equal, after, before))
    acceleration.remove()  # a second time does nothing
    assert acceleration.report().served == 2


def test_handles_are_independent_and_the_last_one_restores():
    tensors = draw()
    with accelerate() as outer:
        attend(tensors)
        with accelerate() as inner:
            attend(tensors)
        attend(tensors)
    attend(tensors)
    assert inner.report().served == 2
    assert outer.report().served == 6
    first, second = accelerate(), accelerate()
    first.remove()
    attend(tensors)
    second.remove()
    assert (first.report().served, second.report().served) == (0, 2)


def test_acceleration_ends_if_the_block_raises():
    with pytest.raises(ZeroDivisionError), accelerate() as acceleration:
        raise ZeroDivisionError
    attend(draw())
    assert acceleration.report().served == 0


def test_nothing_is_printed_and_no_warning_filter_changes():
    program = (
        "import warnings, torch, heedful; before = list(warnings.filters); heedful.accelerate(); "
        "assert warnings.filters == before; "
        "torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 1, 8, 8))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_other_warnings_are_not_suppressed(monkeypatch):
    def warn_and_keep(*arguments):
        warnings.warn("something else", stacklevel=1)
        return kernel(*arguments)

    kernel = torch.library.get_kernel
    monkeypatch.setattr(torch.library, "get_kernel", warn_and_keep)
    with pytest.warns(UserWarning, match="something else"), accelerate():
        pass


def test_a_missing_library_raises_with_the_reason(monkeypatch):
    monkeypatch.setattr(library, "missing", "no compiler was found")
    with pytest.raises(KernelError, match="no compiler was found"):
        accelerate()


def test_threads_can_call_while_handles_come_and_go():
    tensors = draw(Tq=64, Tk=20)
    right = attend(tensors)
    finished, errors = threading.Event(), []

    def call():
        while not finished.is_set():
            errors.append(
                max(
                    torch.dist(ours, theirs).item()
                    for ours, theirs in zip(attend(tensors), right, strict=True)
                )
            )

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(300):
        with accelerate():
            attend(tensors)
    finished.set()
    for caller in callers:
        caller.join()
    assert max(errors) < 1e-4


def test_every_call_of_every_thread_is_counted():
    tensors = draw(Tq=5, Tk=5)
    with accelerate() as acceleration:
        callers = [
            threading.Thread(target=lambda: [attend(tensors) for _ in range(50)]) for _ in range(4)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    report = acceleration.report()
    assert (report.served, report.passed_on) == (200, 200)  # few queries are not differentiated


# --- the report ----------------------------------------------------------------------------------------


def test_the_report_counts_by_kind_of_call():
    with accelerate() as acceleration:
        for _ in range(3):
            F.scaled_dot_product_attention(*draw(Tq=1), enable_gqa=True)
        attend(draw(Tq=90, dtype=torch.bfloat16), is_causal=True)
        attend(draw(), attn_mask=causal_and_padded())
        attend(draw(dtype=torch.float64), attn_mask=torch.ones(70, 90))
    report = acceleration.report()
    assert (report.served, report.passed_on) == (7, 2)
    counted = {call[:-1]: count for call, count in report.calls}
    assert counted == {
        ("forward", "float32", "Tq ≤ 8", "none"): 3,
        ("forward", "bfloat16", "Tq = Tk", "causal"): 1,
        ("backward", "bfloat16", "Tq = Tk", "causal"): 1,
        ("forward", "float32", "Tq ≠ Tk", "key ranges"): 1,
        ("backward", "float32", "Tq ≠ Tk", "key ranges"): 1,
        ("forward", "float64", "Tq ≠ Tk", "tensor"): 1,
        ("backward", "float64", "Tq ≠ Tk", "tensor"): 1,
    }
    lines = str(report).splitlines()
    assert lines[0] == "7 calls served, 2 passed on to PyTorch's kernel"
    assert lines[2].split() == ["3", "forward", "float32", "Tq", "≤", "8", "none", "heedful"]
    assert len(lines) == 2 + len(report.calls)


def test_an_empty_report():
    with accelerate() as acceleration:
        pass
    assert str(acceleration.report()) == "0 calls served, 0 passed on to PyTorch's kernel"


# --- PyTorch's own modules and machinery -----------------------------------------------------------------


def gradients_of(module, *inputs, **options):
    """Return the output and the gradients of all parameters."""
    module.zero_grad()
    output = module(*inputs, **options)
    output = output[0] if isinstance(output, tuple) else output
    output.square().mean().backward()
    return output.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)


def with_each_kernel(module, *inputs, **options):
    """Return the results with our kernel, with PyTorch's, and with PyTorch's in float64."""
    with accelerate() as acceleration:
        ours = gradients_of(module, *inputs, **options)
    assert acceleration.report().served > 0
    assert acceleration.report().passed_on == 0
    exact = gradients_of(
        deepcopy(module).double(), *(tensor.double() for tensor in inputs), **options
    )
    return ours, gradients_of(module, *inputs, **options), exact


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_multihead_attention(causal):
    module = nn.MultiheadAttention(32, 4, batch_first=True)
    tokens = torch.randn(2, 80, 32)
    hidden = ~torch.ones(80, 80, dtype=torch.bool).tril() if causal else None
    options = {"need_weights": False, "attn_mask": hidden, "is_causal": causal}
    assert_no_worse(*with_each_kernel(module, tokens, tokens, tokens, **options), rounding=1e-6)


def test_transformer_encoder_on_a_padded_batch():
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    padding = torch.arange(90) >= torch.tensor([90, 31])[:, None]
    ways = with_each_kernel(encoder, torch.randn(2, 90, 32), src_key_padding_mask=padding)
    assert_no_worse(*ways, rounding=1e-6)


def test_inference_mode_and_autocast():
    tensors = draw()
    with torch.inference_mode():
        theirs = F.scaled_dot_product_attention(*tensors, enable_gqa=True)
        with accelerate() as acceleration:
            ours = F.scaled_dot_product_attention(*tensors, enable_gqa=True)
        torch.testing.assert_close(ours, theirs)
    assert acceleration.report().served == 1
    with torch.autocast("cpu", torch.bfloat16), accelerate() as acceleration:
        output = F.scaled_dot_product_attention(*tensors, enable_gqa=True)
    assert output.dtype == torch.bfloat16
    assert acceleration.report().calls[0][0].dtype == "bfloat16"


def test_func_grad():
    query, key, value = draw(Hkv=4)

    def total(query):
        return F.scaled_dot_product_attention(query, key, value).square().sum()

    theirs = torch.func.grad(total)(query)
    with accelerate():
        ours = torch.func.grad(total)(query)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_compiled_models_are_accelerated():
    module = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    tokens = torch.randn(2, 70, 32)
    right = gradients_of(module, tokens)
    compiled = torch.compile(module, fullgraph=True)
    torch.testing.assert_close(gradients_of(compiled, tokens), right)
    with accelerate() as acceleration:  # compiled before acceleration began
        torch.testing.assert_close(gradients_of(compiled, tokens), right)
        assert acceleration.report().served == 2
        torch.compiler.reset()
        again = torch.compile(module, fullgraph=True)
        torch.testing.assert_close(gradients_of(again, tokens), right)
        assert acceleration.report().served == 4
        with torch.no_grad():
            torch.testing.assert_close(again(tokens), right[0])
    torch.testing.assert_close(gradients_of(again, tokens), right)
