"""Tests of the native kernel: block edges, small types, layouts, threads, forks, and PyTorch's machinery.

test_agreement.py compares it with the reference on drawn problems.
"""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from struct import Struct

import pytest
import torch
from torch.nn import functional as F

from heedful import ArgumentError, Causal, KernelError, Padding, Sinks, Window, attention, explain
from heedful.dropout import kept
from heedful.kernels.native import calls, library, operators, structs

pytestmark = pytest.mark.skipif(
    library.missing is not None, reason=f"the native library is missing: {library.missing}"
)
ISAS = library.isas() if library.missing is None else []
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
EDGES = [1, 15, 16, 17, 63, 64, 65, 127, 128, 129]


@pytest.fixture(params=ISAS)
def isa(request):
    """Run the test with each instruction set of this machine."""
    before = library.isa
    library.use_isa(request.param)
    yield request.param
    library.use_isa(before)


def draw(B=1, Hq=2, Hkv=1, Tq=8, Tk=8, D=16, Dv=16, dtype=torch.float32):
    return (
        torch.randn(B, Hq, Tq, D, dtype=dtype),
        torch.randn(B, Hkv, Tk, D, dtype=dtype),
        torch.randn(B, Hkv, Tk, Dv, dtype=dtype),
    )


def assert_agrees(tensors, **options):
    """Compare output and lse with the float64 reference."""
    actual = attention(*tensors, **options, kernel="native", return_lse=True)
    exact = attention(
        *(tensor.double() for tensor in tensors), **options, kernel="reference", return_lse=True
    )
    atol = TOLERANCE[tensors[0].dtype]
    torch.testing.assert_close(actual.output.double(), exact.output, rtol=0, atol=atol)
    torch.testing.assert_close(actual.lse.double(), exact.lse, rtol=0, atol=1e-4)


# --- the numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("Tq", [4, 8, 70])
def test_gradients_of_saturated_weights_are_as_accurate_as_pytorchs(isa, Tq):
    def gradients(attend, dtype):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in tensors]
        return torch.autograd.grad(attend(*leaves), leaves, cotangent.to(dtype))

    errors = torch.zeros(2, 3, dtype=torch.float64)
    for _ in range(20):
        tensors = draw(Hkv=2, Tq=Tq, Tk=70, D=64, Dv=64)
        tensors[0].mul_(3), tensors[1].mul_(3)
        cotangent = torch.randn(1, 2, Tq, 64)
        exact = gradients(F.scaled_dot_product_attention, torch.float64)
        ours = gradients(lambda *x: attention(*x, kernel="native"), torch.float32)
        theirs = gradients(F.scaled_dot_product_attention, torch.float32)
        for row, results in zip(errors, (ours, theirs), strict=True):
            row += torch.stack([torch.dist(a, b) for a, b in zip(results, exact, strict=True)])
    assert (errors[0] <= 1.5 * errors[1]).all(), errors


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_lengths_around_the_edges_of_blocks(isa, dtype):
    for Tq in EDGES:
        for Tk in EDGES:
            assert_agrees(draw(Tq=Tq, Tk=Tk, dtype=dtype))
            assert_agrees(draw(Tq=Tq, Tk=Tk, dtype=dtype), mask=Causal("end") & Window(20))


def gradients(tensors, kernel="native", **options):
    """Return the gradients of query, key and value, for a sine wave as the output's cotangent and ones as the lse's."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    output, lse = attention(*leaves, **options, kernel=kernel, return_lse=True)
    waves = torch.arange(output.numel()).sin().view(output.shape).to(output.dtype)
    total = (output * waves).sum() + lse.masked_fill(~lse.isfinite(), 0.0).sum()
    return torch.autograd.grad(total, leaves)


def assert_gradients_agree(tensors, **options):
    exact = gradients([tensor.double() for tensor in tensors], "reference", **options)
    for ours, theirs in zip(gradients(tensors, **options), exact, strict=True):
        # The products dO Vᵀ are of size √Dv.
        size = max(theirs.abs().max().item(), tensors[2].shape[-1] ** 0.5)
        atol = 2 * TOLERANCE[tensors[0].dtype] * size
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gradients_around_the_edges_of_blocks(isa, dtype):
    for Tq, Tk in ((1, 200), (63, 65), (64, 64), (65, 127), (128, 129), (129, 17), (16, 128)):
        tensors = draw(2, 4, 2, Tq, Tk, D=24, Dv=17, dtype=dtype)
        assert_gradients_agree(tensors)
        assert_gradients_agree(tensors, mask=Window(20, "end") | Sinks(3), softcap=5.0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", [None, Causal()], ids=["full", "causal"])
def test_the_error_of_the_gradients_is_at_most_one_and_a_half_times_pytorchs(isa, dtype, mask):
    tensors = draw(Hq=4, Hkv=4, Tq=300, Tk=300, D=64, Dv=64, dtype=dtype)
    cotangent = torch.randn(1, 4, 300, 64, dtype=dtype)

    def differentiate(kernel, dtype):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        output = attention(*leaves, mask, kernel=kernel)
        return torch.autograd.grad(output, leaves, cotangent.to(dtype))

    exact = differentiate("reference", torch.float64)
    ours, theirs = (
        [torch.dist(a.double(), b) for a, b in zip(differentiate(name, dtype), exact, strict=True)]
        for name in ("native", "torch_sdpa")
    )
    assert all(a <= 1.5 * b for a, b in zip(ours, theirs, strict=True)), (ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_error_of_gradients_with_dropout_is_close_to_that_of_one_rounding(isa, dtype):
    """PyTorch computes dropout in float32 and rounds the results, so its error is that of one rounding."""
    tensors = draw(Hq=4, Hkv=4, Tq=600, Tk=600, D=64, Dv=64, dtype=dtype)
    cotangent = torch.randn(1, 4, 600, 64, dtype=dtype)

    def differentiate(kernel, dtype):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        torch.manual_seed(0)
        output = attention(*leaves, Causal(), dropout_p=0.1, kernel=kernel)
        return torch.autograd.grad(output, leaves, cotangent.to(dtype))

    exact = differentiate("reference", torch.float64)
    for ours, right in zip(differentiate("native", dtype), exact, strict=True):
        assert torch.dist(ours.double(), right) <= 1.5 * torch.dist(right.to(dtype).double(), right)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_head_sizes_of_every_remainder(isa, dtype):
    for D, Dv in ((1, 1), (3, 5), (8, 31), (17, 16), (33, 64), (80, 7), (96, 96), (255, 256)):
        tensors = draw(Tq=5, Tk=70, D=D, Dv=Dv, dtype=dtype)
        assert_agrees(tensors, mask=Causal("end"))
        assert_gradients_agree(tensors, mask=Causal("end"))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_one_query_on_many_keys(isa, dtype):
    for heads in ((8, 8), (8, 2), (7, 1)):
        assert_agrees(draw(2, *heads, Tq=1, Tk=5000, D=64, Dv=64, dtype=dtype))
        assert_agrees(
            draw(2, *heads, Tq=3, Tk=2500, D=64, Dv=40, dtype=dtype),
            mask=Padding([2500, 77]) & (Causal("end") & Window(2000) | Sinks(4)),
            sinks=torch.randn(heads[0]),
            softcap=20.0,
        )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", [None, Causal()], ids=["full", "causal"])
def test_the_error_of_the_output_is_at_most_one_and_a_half_times_pytorchs(isa, dtype, mask):
    ours = theirs = 0.0
    for _ in range(5):
        tensors = draw(Hq=4, Hkv=4, Tq=300, Tk=300, D=64, Dv=64, dtype=dtype)
        exact = attention(*(tensor.double() for tensor in tensors), mask, kernel="reference")
        output = attention(*tensors, mask, kernel="native")
        ours += torch.dist(output.double(), exact).item()
        output = F.scaled_dot_product_attention(*tensors, is_causal=mask is not None)
        theirs += torch.dist(output.double(), exact).item()
    assert ours <= 1.5 * theirs


def test_it_drops_the_same_weights_as_the_python_kernels(isa):
    B, Hq, Tq, Tk = 2, 6, 70, 150
    query, key = torch.randn(B, Hq, Tq, 8), torch.randn(B, 2, Tk, 8)
    value = torch.eye(Tk).expand(B, 2, Tk, Tk)
    seed = torch.tensor(2**62 + 12345)
    weights, _ = calls.forward(
        *(query, key, value, None, None, None, None, None, seed, 0.3, 0.0, 0.4), wants_lse=False
    )
    indices = torch.meshgrid(*(torch.arange(n) for n in (B, Hq, Tq, Tk)), indexing="ij")
    assert torch.equal(weights != 0, kept(int(seed), 0.4, *indices))
    all_dropped = calls.forward(
        *(query, key, value, None, None, None, None, None, seed, 0.3, 0.0, 1.0), wants_lse=False
    )
    assert (all_dropped[0] == 0).all()


def test_no_part_of_the_output_is_left_unwritten(isa, monkeypatch):
    def poisoned(allocate):
        return lambda *arguments: allocate(*arguments).fill_(torch.nan)

    monkeypatch.setattr(calls, "empty_output", poisoned(calls.empty_output))
    shown = torch.ones(2, 1, 70, 90, dtype=torch.bool)
    shown[0, :, :66] = False
    for mask in (None, Causal("end"), Padding([0, 50]), shown, Window(3, "start")):
        output = attention(*draw(B=2, Tq=70, Tk=90, Dv=19), mask, kernel="native")
        assert output.isfinite().all()


def test_no_part_of_the_gradients_is_left_unwritten(isa, monkeypatch):
    allocate = calls.empty_gradients
    monkeypatch.setattr(
        calls,
        "empty_gradients",
        lambda *arguments: tuple(tensor.fill_(torch.nan) for tensor in allocate(*arguments)),
    )
    hidden = torch.zeros(70, 90, dtype=torch.bool)
    for mask in (None, Causal("end"), Padding([0, 50]), hidden, Window(3, "start")):
        for gradient in gradients(draw(B=2, Tq=70, Tk=90, Dv=19), mask=mask):
            assert gradient.isfinite().all()
    assert all((gradient == 0).all() for gradient in gradients(draw(Tq=70, Tk=90), mask=hidden))
    for B, Tq, Tk in ((0, 3, 3), (2, 0, 3), (2, 3, 0)):  # sinks have a gradient even then
        sinks = torch.zeros(2, requires_grad=True)
        tensors = [tensor.requires_grad_() for tensor in draw(B, Tq=Tq, Tk=Tk)]
        attention(*tensors, sinks=sinks, kernel="native").sum().backward()
        assert all((tensor.grad == 0).all() for tensor in (sinks, *tensors))


@pytest.mark.slow
def test_ten_thousand_shapes(isa):
    for _ in range(10_000 // len(ISAS)):
        B, Hkv, group = torch.randint(1, 4, (3,)).tolist()
        Tq, Tk = (torch.rand(2) ** 3 * 400 + 1).long().tolist()
        D, Dv = torch.randint(1, 140, (2,)).tolist()
        dtype = list(TOLERANCE)[int(torch.randint(3, ()))]
        masks = (None, Causal("end"), Window(9, "start"), Padding([Tk // 2] * B), Sinks(3))
        mask = masks[int(torch.randint(len(masks), ()))]
        tensors = draw(B, Hkv * group, Hkv, Tq, Tk, D, Dv, dtype)
        assert_agrees(tensors, mask=mask)
        assert_gradients_agree(tensors, mask=mask)


# --- layouts -----------------------------------------------------------------------------------------


def test_the_output_has_the_memory_order_of_the_query():
    for D, Dv in ((8, 8), (8, 6)):
        _, key, value = draw(D=D, Dv=Dv, Tq=5)
        tokens_first = attention(torch.randn(1, 5, 2, D).transpose(1, 2), key, value)
        assert tokens_first.transpose(1, 2).is_contiguous()
        assert attention(torch.randn(1, 2, 5, D), key, value).is_contiguous()


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.mT.contiguous().mT,
        lambda tensor: tensor.flip(2)[:, :, ::2],
        lambda tensor: tensor[:, :1].expand(-1, 4, -1, -1),
        lambda tensor: torch.cat([tensor, tensor], -1)[..., 1 : 1 + tensor.shape[-1]],
    ],
    ids=["columns", "every other", "expanded heads", "misaligned"],
)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_any_strides(change, dtype):
    tensors = [change(tensor) for tensor in draw(Tq=33, Tk=33, Dv=24, dtype=dtype)]
    assert_agrees(tensors)
    assert_gradients_agree(tensors)


def overlapping(H, T, D):
    """Return (1, H, T, D) whose rows overlap: each starts one number after the last."""
    return torch.randn(1, H, T + D - 1).unfold(2, D, 1)


def test_overlapping_inputs():
    assert_agrees([overlapping(2, 3, 64), overlapping(1, 5, 64), overlapping(1, 5, 64)])
    for T in (1, 3, 70):
        sequence = torch.randn(2, 2, T + 63)
        leaves = [sequence.clone().requires_grad_() for _ in range(3)]
        exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
        for tensors, kernel in ((leaves, "native"), (exact, "reference")):
            output = attention(*(tensor.unfold(2, 64, 1) for tensor in tensors), kernel=kernel)
            output.sin().sum().backward()
        for ours, theirs in zip(leaves, exact, strict=True):
            atol = 1e-5 * max(theirs.grad.abs().max().item(), 1.0)
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 0, 2), (1, 2, 0)]
)
def test_results_are_allocated_in_the_memory_order_of_dense_inputs(order):
    memory = torch.randn(*((2, 3, 5)[axis] for axis in order), 8)
    query = memory.permute(*(order.index(axis) for axis in range(3)), 3)
    assert query.shape == (2, 3, 5, 8)
    assert calls.empty_output(query, query).stride() == query.stride()
    gradients = calls.empty_gradients(query, query, query, None, None, False, False)
    assert all(gradient.stride() == query.stride() for gradient in gradients[:3])


@pytest.mark.parametrize(
    "expand",
    [
        lambda tensor: tensor[:1].expand(2, -1, -1, -1),
        lambda tensor: tensor[:, :1].expand(-1, 3, -1, -1),
        lambda tensor: tensor[:, :, :1].expand(-1, -1, 5, -1),
        lambda tensor: (
            tensor.transpose(1, 2).contiguous().transpose(1, 2)[:1].expand(2, -1, -1, -1)
        ),
        lambda tensor: torch.cat([tensor, tensor], -1)[..., :8],
        lambda tensor: torch.cat([tensor, tensor], -1)[..., :8].transpose(1, 2),
    ],
)
def test_results_are_allocated_in_the_memory_order_of_other_inputs_as_empty_like_does(expand):
    tensor = expand(torch.randn(2, 3, 5, 8))
    assert calls.empty_output(tensor, tensor).stride() == torch.empty_like(tensor).stride()


def test_dense_masks_and_biases_of_any_strides(isa):
    tensors = draw(2, 4, 2, Tq=20, Tk=70)
    seen = torch.rand(70, 20).T > 0.3
    for mask in (seen, seen[:, ::2].repeat_interleave(2, 1), seen.expand(2, 4, 20, 70), seen[:1]):
        assert_agrees(tensors, mask=mask)
    for shape in ((70,), (20, 1), (4, 1, 1), (2, 1, 1, 70), (2, 4, 20, 70)):
        assert_agrees(tensors, bias=torch.randn(shape), mask=Causal("end"))
        assert_agrees(tensors, bias=torch.randn(shape).bfloat16())


# --- threads and processes ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_same_bits_on_any_number_of_threads(isa, dtype):
    problems = [
        (draw(2, 4, 2, Tq=200, Tk=300, D=64, Dv=64, dtype=dtype), Causal("end")),
        (draw(1, 8, 2, Tq=1, Tk=9000, D=64, Dv=64, dtype=dtype), None),
        (draw(3, 2, 2, Tq=100, Tk=100, dtype=dtype), Padding([3, 50, 100])),
    ]
    for tensors, mask in problems:
        outputs = []
        for threads in (1, 2, 4, 3):
            torch.set_num_threads(threads)
            result = attention(*tensors, mask, kernel="native", return_lse=True)
            outputs.append([*result, *gradients(tensors, mask=mask)])
        for other in outputs[1:]:
            assert all(map(torch.equal, other, outputs[0]))


def test_many_python_threads_at_once():
    tensors = draw(2, 4, 2, Tq=150, Tk=300, D=32)
    expected = attention(*tensors, Causal("end"), kernel="native")
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(
            lambda _: attention(*tensors, Causal("end"), kernel="native"), range(100)
        )
    assert all(torch.equal(result, expected) for result in results)


def test_after_a_fork():
    """The child has no threads of the pool and must not wait for them. PyTorch's own operations would."""
    program = """
import os, torch
from heedful import attention
torch.set_num_threads(2)
query = torch.randn(2, 4, 200, 32)
expected = attention(query, query, query, kernel="native").numpy().tobytes()
child = os.fork()
if child == 0:
    os._exit(attention(query, query, query, kernel="native").numpy().tobytes() != expected)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


# --- PyTorch's machinery -----------------------------------------------------------------------------


def operator_arguments():
    query, key, value = draw(2, 4, 2, Tq=5, Tk=7, Dv=6)
    ranges = (Causal("end") & Window(4)).intervals(5, 7)
    unset = (None,) * 6
    numbers = (0.3, 0.0, 0.0)
    tokens_first = torch.randn(2, 5, 4, 16).transpose(1, 2)
    return [
        (query, key, value, *unset, *numbers),
        (tokens_first, key, value, ranges.start, ranges.stop, *unset[2:], *numbers),
        (query.mT.contiguous().mT, key, value, *unset, *numbers),
        (overlapping(4, 5, 16), overlapping(2, 7, 16), overlapping(2, 7, 16), *unset, *numbers),
        (query, key, value, None, None, torch.rand(1, 1, 5, 7) > 0.5, *unset[3:], 0.3, 5.0, 0.0),
        (
            query,
            key,
            value,
            None,
            None,
            None,
            torch.randn(1, 4, 1, 7),
            torch.randn(4),
            None,
            *numbers,
        ),
        (query, key, value, *unset[:5], torch.tensor(7), 0.3, 0.0, 0.5),
    ]


@pytest.mark.parametrize("arguments", operator_arguments())
def test_opcheck_accepts_the_forward_operator(arguments):
    torch.library.opcheck(operators.attention_forward, arguments)


@pytest.mark.parametrize("wants", [(True, True), (False, False)])
def test_opcheck_accepts_the_backward_operator(wants):
    tensors = draw(2, 4, 2, Tq=5, Tk=7, Dv=6)
    options = (None, None, None, torch.randn(1, 4, 1, 7), torch.randn(4), None, 0.3, 5.0, 0.0)
    output, lse = operators.attention_forward(*tensors, *options)
    cotangents = torch.randn_like(output), torch.randn_like(lse) if wants[0] else None
    arguments = (*cotangents, *tensors, output, lse, *options, *wants)
    torch.library.opcheck(operators.attention_backward, arguments)


def test_differentiating_twice_fails_and_names_kernels_that_can():
    query = torch.randn(1, 2, 4, 8, requires_grad=True)
    output = attention(query, query, query, kernel="native")
    (gradient,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(KernelError, match="kernel='reference'"):
        torch.autograd.grad(gradient.sum(), query)


def test_only_tensors_that_require_it_get_a_gradient():
    query, key, value = draw(2, 4, 2, Tq=5, Tk=7)
    bias = torch.randn(4, 1, 7, dtype=torch.bfloat16, requires_grad=True)
    attention(query, key, value.requires_grad_(), bias=bias, kernel="native").sum().backward()
    assert query.grad is None
    assert value.grad.shape == value.shape
    assert bias.grad.shape == bias.shape
    assert bias.grad.dtype == bias.dtype


def test_it_can_be_exported():
    class Layer(torch.nn.Module):
        def forward(self, query, lengths):
            return attention(query, query, query, Causal() & Padding(lengths))

    inputs = torch.randn(2, 2, 6, 8), torch.tensor([3, 6])
    program = torch.export.export(Layer(), inputs)
    assert any(node.target is operators.attention_forward for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*inputs), Layer()(*inputs))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles_with_dropout_and_lse(backend):
    def function(query):
        return attention(query, query, query, Causal(), dropout_p=0.5, return_lse=True)

    query = torch.randn(1, 2, 64, 8)
    output, lse = torch.compile(function, fullgraph=True, backend=backend)(query)
    torch.testing.assert_close(lse, function(query).lse)
    assert output.isfinite().all()


def test_the_profiler_lists_the_operator():
    with torch.profiler.profile() as profile:
        attention(*draw())
    assert "heedful::attention_forward" in [event.key for event in profile.key_averages()]


def test_fake_tensors_are_not_computed():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        query = torch.empty(64, 64, 2**20, 64)
        output = attention(query, query, query)
        assert output.shape == query.shape
    assert attention(*draw(Tq=5, Tk=5), Causal()).isfinite().all()


def test_key_ranges_cached_in_inference_mode_work_with_gradients():
    tensors = draw(Tq=11, Tk=11)
    with torch.inference_mode():
        attention(*tensors, Window(7))
    mask = Window(7)
    assert not mask.intervals_on(mask.grid(11)).start.is_inference()


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (draw(dtype=torch.float64), "no float64"),
        (draw(D=0), "head size of 0"),
        ([tensor.to("meta") for tensor in draw()], "CPUs only"),
    ],
    ids=["float64", "no head size", "another device"],
)
def test_refusals_say_why(tensors, reason):
    assert reason in dict(explain(*tensors).others)["native"]
    with pytest.raises(KernelError, match=reason):
        attention(*tensors, kernel="native")


def test_transforms_of_torch_func_use_another_kernel():
    query = torch.randn(3, 1, 2, 5, 8)
    batched = torch.vmap(lambda query: attention(query, query, query, kernel="reference"))(query)
    torch.testing.assert_close(batched[1], attention(query[1], query[1], query[1]))
    with pytest.raises(KernelError, match=r"torch\.func"):
        torch.vmap(lambda query: attention(query, query, query, kernel="native"))(query)


def with_isa(name: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"HEEDFUL_ISA": name},
        capture_output=True,
        text=True,
    )


def test_an_environment_variable_chooses_the_instruction_set():
    program = "from heedful.kernels.native import library; print(library.isa)"
    assert with_isa("generic", program).stdout.strip() == "generic"


@pytest.mark.parametrize(
    ("module", "name", "value", "quantity"),
    [
        (library, "ABI", 999, "version of the interface"),
        (library, "MAX_KEY_RANGES", 3, "maximum number of key ranges"),
        (structs, "PROBLEM", Struct("q"), "size of heedful_problem"),
        (structs, "GRADIENT", Struct("q"), "size of heedful_gradient"),
    ],
)
def test_a_library_with_another_interface_is_not_loaded(monkeypatch, module, name, value, quantity):
    monkeypatch.setattr(module, name, value)
    with pytest.raises(KernelError, match=f"its {quantity} is .* reinstall heedful"):
        library._open()


def test_a_missing_library_is_an_error_that_names_the_compiler(monkeypatch):
    monkeypatch.setattr(library, "FILE", "nowhere.so")
    with pytest.raises(KernelError, match=r"install g\+\+ 11, clang 14"):
        library._open()


def test_the_library_refuses_more_key_ranges_than_its_buffers_hold():
    query, key, value = draw(Tq=5, Tk=7)
    start = torch.zeros(1, 5, library.MAX_KEY_RANGES + 1, dtype=torch.int32)
    with pytest.raises(KernelError, match="at most 2 key ranges"):
        calls.forward(
            *(query, key, value, start, start + 1, None, None, None, None, 0.3, 0.0, 0.0),
            wants_lse=False,
        )


def test_the_library_refuses_an_unknown_dtype(monkeypatch):
    query, key, value = draw(Tq=5, Tk=7)
    monkeypatch.setitem(structs.DTYPES, torch.float32, 3)
    with pytest.raises(KernelError, match="dtype"):
        calls.forward(*(query, key, value, *(None,) * 6, 0.3, 0.0, 0.0), wants_lse=False)


def ranges(*shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype)


BAD_ARGUMENTS = {
    "fewer keys than values": {"key": torch.zeros(2, 2, 6, 16)},
    "a key of another head size": {"key": torch.zeros(2, 2, 7, 15)},
    "a key of fewer batch entries": {"key": torch.zeros(1, 2, 7, 16)},
    "a key of another dtype": {"key": torch.zeros(2, 2, 7, 16, dtype=torch.float16)},
    "no key heads": {"key": torch.zeros(2, 0, 7, 16), "value": torch.zeros(2, 0, 7, 6)},
    "heads that cannot be grouped": {
        "key": torch.zeros(2, 3, 7, 16),
        "value": torch.zeros(2, 3, 7, 6),
    },
    "three dimensions": {"query": torch.zeros(4, 5, 16)},
    "float64": {
        name: torch.zeros(2, 4, 4, 4, dtype=torch.float64) for name in ("query", "key", "value")
    },
    "no head size": {"query": torch.zeros(2, 4, 5, 0), "key": torch.zeros(2, 2, 7, 0)},
    "300 key ranges": {"start": ranges(1, 5, 300), "stop": ranges(1, 5, 300)},
    "ranges of no key": {"start": ranges(1, 5, 0), "stop": ranges(1, 5, 0)},
    "ranges of other batch entries": {"start": ranges(3, 5, 1), "stop": ranges(3, 5, 1)},
    "ranges of fewer queries": {"start": ranges(1, 4, 1), "stop": ranges(1, 4, 1)},
    "a short stop": {"start": ranges(1, 5, 2), "stop": ranges(1, 5, 1)},
    "a start alone": {"start": ranges(1, 5, 1)},
    "a stop alone": {"stop": ranges(1, 5, 1)},
    "int16 ranges": {
        "start": ranges(1, 5, 1, dtype=torch.int16),
        "stop": ranges(1, 5, 1, dtype=torch.int16),
    },
    "strided ranges": {"start": ranges(1, 2, 5).mT, "stop": ranges(1, 2, 5).mT},
    "a mask of numbers": {"mask": torch.zeros(2, 4, 5, 7)},
    "a small mask": {"mask": torch.ones(2, 4, 5, 6, dtype=torch.bool)},
    "a flat mask": {"mask": torch.ones(5, 7, dtype=torch.bool)},
    "a Boolean bias": {"bias": torch.ones(2, 4, 5, 7, dtype=torch.bool)},
    "a small bias": {"bias": torch.zeros(2, 3, 5, 7)},
    "too few sinks": {"sinks": torch.zeros(3)},
    "sinks of another dtype": {"sinks": torch.zeros(4, dtype=torch.float16)},
    "a dropout of 2": {"dropout_p": 2.0},
    "a negative dropout": {"dropout_p": -0.1},
    "a dropout of NaN": {"dropout_p": math.nan},
    "dropout without a seed": {"dropout_p": 0.5},
    "a seed of numbers": {"seed": torch.tensor(1.5), "dropout_p": 0.5},
    "a complex seed": {"seed": torch.tensor(3j), "dropout_p": 0.5},
    "two seeds": {"seed": torch.tensor([1, 2]), "dropout_p": 0.5},
    "a seed without a sign": {"seed": torch.tensor(2**64 - 1, dtype=torch.uint64)},
    "a seed on another device": {"seed": torch.tensor(1, device="meta")},
    "a scale of NaN": {"scale": math.nan},
    "an infinite scale": {"scale": -math.inf},
    "a negative cap": {"softcap": -1.0},
    "a cap of NaN": {"softcap": math.nan},
    "an infinite cap": {"softcap": math.inf},
}
BAD_RESULTS = {
    "a small cotangent": {"grad_output": torch.zeros(2, 4, 5, 5)},
    "a cotangent of another dtype": {"grad_output": torch.zeros(2, 4, 5, 6, dtype=torch.bfloat16)},
    "a small output": {"output": torch.zeros(2, 4, 4, 6)},
    "a small lse": {"lse": torch.zeros(2, 4, 4)},
    "an lse of another dtype": {"lse": torch.zeros(2, 4, 5, dtype=torch.float16)},
    "a small lse cotangent": {"grad_lse": torch.zeros(2, 4, 1)},
}


def operator_inputs(changes):
    """Return the arguments of the forward and of the backward operator, with some replaced."""
    query, key, value = draw(2, 4, 2, Tq=5, Tk=7, Dv=6)
    inputs = {"query": query, "key": key, "value": value}
    options = dict.fromkeys(("start", "stop", "mask", "bias", "sinks", "seed"))
    forward = {**inputs, **options, "scale": 0.3, "softcap": 0.0, "dropout_p": 0.0}
    results = {"output": torch.zeros(2, 4, 5, 6), "lse": torch.zeros(2, 4, 5)}
    cotangents = {"grad_output": torch.zeros(2, 4, 5, 6), "grad_lse": None}
    wants = {"wants_bias": False, "wants_sinks": False}
    backward = {**forward, **results, **cotangents, **wants}
    return (
        {name: changes.get(name, old) for name, old in arguments.items()}
        for arguments in (forward, backward)
    )


@pytest.mark.parametrize("changes", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_the_operators_refuse_arguments_that_do_not_fit_together(changes):
    forward, backward = operator_inputs(changes)
    with pytest.raises((ArgumentError, KernelError)):
        operators.attention_forward(**forward)
    with pytest.raises((ArgumentError, KernelError)):
        operators.attention_backward(**backward)


@pytest.mark.parametrize("changes", BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_the_backward_operator_refuses_results_of_another_forward_pass(changes):
    _, backward = operator_inputs(changes)
    with pytest.raises(ArgumentError, match=next(iter(changes))):
        operators.attention_backward(**backward)


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1])
def test_the_64_bits_of_a_seed_decide_which_weights_are_dropped(seed):
    query, key = torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 9, 4)
    value = torch.eye(9).view(1, 1, 9, 9)  # the output is the weights
    changes = {"query": query, "key": key, "value": value, "seed": torch.tensor(seed)}
    forward, _ = operator_inputs({**changes, "dropout_p": 0.5})
    output, _ = operators.attention_forward(**forward)
    zero, indices = torch.zeros((), dtype=torch.int64), torch.arange(9)
    expected = kept(seed, 0.5, zero, zero, indices[:4, None], indices)
    assert torch.equal(output[0, 0] > 0, expected)


def test_the_operators_accept_arguments_that_fit_together():
    forward, backward = operator_inputs({})
    output, _ = operators.attention_forward(**forward)
    assert output.shape == backward["output"].shape
    assert len(operators.attention_backward(**backward)) == 5
    wanted = backward | {"wants_bias": True, "wants_sinks": True}
    assert len(operators.attention_backward(**wanted)) == 5
