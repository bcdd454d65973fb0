"""Calls that PyTorch itself computes step by step: with dropout, masks with gradients, other sizes or strides."""

import pytest
import torch
from torch.compiler import config as compiler_config
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from heedful import accelerate, attention
from heedful.dropout import draw_seed
from heedful.kernels import reference
from heedful.kernels.native import library
from heedful.masks import Causal, Dense
from heedful.problem import AttentionProblem

pytestmark = pytest.mark.skipif(
    library.missing is not None, reason=f"the native library is missing: {library.missing}"
)
MAX_ERROR_RATIO = 1.5  # relative to PyTorch's error, both compared with float64
# Norms of errors that rounding alone may leave. PyTorch computes smaller dtypes in float32 in these calls.
ROUNDING = {torch.float32: 4e-7, torch.bfloat16: 5e-4, torch.float16: 1e-4}


def draw(*leading, Tq=70, Tk=90, D=16, Dv=16, dtype=torch.float32):
    """Return query, key and value with any leading dimensions."""
    return [torch.randn(*leading, T, size, dtype=dtype) for T, size in ((Tq, D), (Tk, D), (Tk, Dv))]


def tokens_first(tensors):
    return [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in tensors]


def strided(tensors):
    return [tensor.mT.contiguous().mT for tensor in tensors]


def mask_with_gradient(*shape):
    return {"attn_mask": torch.randn(*shape)}


CALLS = {
    "value size": lambda: (draw(2, 4, Dv=24), {}),
    "value size, tokens first": lambda: (tokens_first(draw(2, 4, Dv=24)), {}),
    "value size, causal": lambda: (draw(2, 4, Dv=5), {"is_causal": True}),
    "value size, Boolean mask": lambda: (draw(2, 4, Dv=5), {"attn_mask": torch.rand(1, 90) > 0.2}),
    "3-D": lambda: (draw(4), {}),
    "3-D, causal": lambda: (draw(4), {"is_causal": True}),
    "2-D": lambda: (draw(), {}),
    "5-D": lambda: (draw(2, 3, 4), {"attn_mask": torch.rand(2, 1, 1, 70, 90) > 0.3}),
    "strided": lambda: (strided(draw(2, 4)), {}),
    "grouped heads": lambda: (
        [torch.randn(2, 4, 70, 16), *draw(2, 2, Dv=8)[1:]],
        {"enable_gqa": True},
    ),
    "batches that broadcast": lambda: ([*draw(2, 4)[:1], *draw(1, 4)[1:]], {}),
    "dimensions that broadcast": lambda: ([*draw(3, 2, 4)[:1], *draw(2, 1)[1:]], {}),
    "mask with gradient": lambda: (draw(2, 4), mask_with_gradient(70, 90)),
    "mask with gradient, of T5": lambda: (draw(2, 4), mask_with_gradient(1, 4, 70, 90)),
    "mask with gradient, of ALiBi": lambda: (draw(2, 4), mask_with_gradient(4, 1, 90)),
    "mask with gradient, for each entry": lambda: (draw(2, 4), mask_with_gradient(2, 1, 1, 90)),
    "mask with gradient, 5-D": lambda: (draw(2, 3, 4), mask_with_gradient(3, 1, 70, 90)),
    "scale": lambda: (draw(4), {"scale": -0.3}),
}


def attend(tensors, options):
    """Return the output of PyTorch's attention and the gradients of all tensors, a mask of numbers included."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    attn_mask = options.get("attn_mask")
    if attn_mask is not None and attn_mask.is_floating_point():
        leaves.append(attn_mask.detach().requires_grad_())
        options = options | {"attn_mask": leaves[-1]}
    output = F.scaled_dot_product_attention(*leaves[:3], **options)
    weights = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype)
    return output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)


def converted(tensors, options, dtype):
    """Return the arguments of a call in another dtype."""
    options = {
        name: value.to(dtype) if name == "attn_mask" and value.is_floating_point() else value
        for name, value in options.items()
    }
    return [tensor.to(dtype) for tensor in tensors], options


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_outputs_and_gradients_are_as_accurate_as_pytorchs(call, dtype):
    arguments = converted(*CALLS[call](), dtype)
    exact = attend(*converted(*arguments, torch.float64))
    theirs = attend(*arguments)
    with accelerate() as acceleration:
        ours = attend(*arguments)
    assert (acceleration.report().served, acceleration.report().passed_on) == (2, 0)
    for our, their, right in zip(ours, theirs, exact, strict=True):
        assert (our.dtype, our.shape) == (their.dtype, their.shape)
        error, their_error = (torch.dist(x.double(), right).item() for x in (our, their))
        assert error <= MAX_ERROR_RATIO * their_error + ROUNDING[dtype] * right.norm().item()
    assert ours[0].stride() == theirs[0].stride()


@pytest.mark.parametrize("call", CALLS)
def test_inference_returns_the_same(call):
    tensors, options = CALLS[call]()
    theirs = F.scaled_dot_product_attention(*tensors, **options)
    with accelerate() as acceleration, torch.inference_mode():
        ours = F.scaled_dot_product_attention(*tensors, **options)
        inside = [tensor.clone() for tensor in tensors]
        torch.testing.assert_close(F.scaled_dot_product_attention(*inside, **options), ours)
    torch.testing.assert_close(ours, theirs)
    assert ours.stride() == theirs.stride()
    assert acceleration.report().served == 2


@pytest.mark.parametrize("sizes", [(0, 70, 90), (2, 0, 90), (2, 70, 0)], ids=str)
@pytest.mark.parametrize("mask", [torch.ones, lambda *shape: torch.ones(*shape).bool()])
def test_empty_tensors(sizes, mask):
    B, Tq, Tk = sizes
    tensors, options = (
        draw(B, 4, Tq=Tq, Tk=Tk),
        {"attn_mask": mask(1, 1, 1, Tk).expand(B, 4, Tq, Tk)},
    )
    theirs = F.scaled_dot_product_attention(*tensors, **options)
    with accelerate():
        assert torch.equal(F.scaled_dot_product_attention(*tensors, **options), theirs)


def test_gradients_are_computed_for_the_tensors_that_need_them():
    tensors, options = CALLS["mask with gradient, of T5"]()
    everything = attend(tensors, options)[1:]
    for i in range(4):
        arguments = [*tensors, options["attn_mask"]]
        arguments[i] = arguments[i].detach().requires_grad_()
        with accelerate() as acceleration:
            output = F.scaled_dot_product_attention(*arguments[:3], attn_mask=arguments[3])
            weights = torch.linspace(-1, 1, output.shape[-1])
            (output * weights).sum().backward()
        torch.testing.assert_close(arguments[i].grad, everything[i])
        assert acceleration.report().served == 2


# --- dropout -------------------------------------------------------------------------------------------


DROPPING = {
    "none": (None, {}),
    "causal": (Causal(align="start"), {"is_causal": True}),
    "ranges": (
        Dense(torch.ones(70, 90).tril(20).bool()),
        {"attn_mask": torch.ones(70, 90).tril(20).bool()},
    ),
}


def with_known_draws(tensors, mask, dropout_p):
    """Return the output and gradients in float64, without the weights that our generator drops for the next seed."""
    leaves = [tensor.detach().double().requires_grad_() for tensor in tensors]
    problem = AttentionProblem(*leaves, mask, dropout_p=dropout_p)
    output, _ = reference.attend(problem, draw_seed())
    weights = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype)
    return output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)


@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("mask", DROPPING)
def test_dropout_is_that_of_our_generator(mask, dropout_p):
    tensors, (ours, theirs) = draw(2, 4), DROPPING[mask]
    torch.manual_seed(1)
    exact = with_known_draws(tensors, ours, dropout_p)
    torch.manual_seed(1)
    with accelerate() as acceleration:
        results = attend(tensors, theirs | {"dropout_p": dropout_p})
    assert acceleration.report().served == 2
    for result, right in zip(results, exact, strict=True):
        torch.testing.assert_close(result.double(), right, rtol=1e-4, atol=1e-5)
    with torch.no_grad(), accelerate():
        torch.manual_seed(1)
        output = F.scaled_dot_product_attention(*tensors, **theirs, dropout_p=dropout_p)
    torch.testing.assert_close(output, results[0])


def test_dropout_keeps_the_mean_and_draws_anew():
    query, key, _ = draw(1, 4, Tk=64)
    value = torch.ones(1, 4, 64, 1)
    with accelerate():
        outputs = [
            F.scaled_dot_product_attention(query, key, value, dropout_p=0.25) for _ in range(20)
        ]
    assert not torch.equal(outputs[0], outputs[1])
    assert torch.stack(outputs).mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dropout_p", [1.5, -0.5, torch.nan])
def test_impossible_probabilities_raise_pytorchs_error(dropout_p):
    tensors = draw(2, 4)
    with pytest.raises(RuntimeError) as theirs:
        F.scaled_dot_product_attention(*tensors, dropout_p=dropout_p)
    with accelerate(), pytest.raises(RuntimeError) as ours:
        F.scaled_dot_product_attention(*tensors, dropout_p=dropout_p)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_drops_the_same_weights_again(use_reentrant):
    leaves = [tensor.requires_grad_() for tensor in draw(2, 4)]

    def call(*tensors):
        return F.scaled_dot_product_attention(*tensors, dropout_p=0.5)

    with accelerate() as acceleration:
        torch.manual_seed(1)
        right = torch.autograd.grad(call(*leaves).square().sum(), leaves)
        torch.manual_seed(1)
        loss = checkpoint(call, *leaves, use_reentrant=use_reentrant).square().sum()
        draw_seed()  # what follows in the forward pass draws, too
        loss.backward()
    assert acceleration.report().served == 5
    for leaf, gradient in zip(leaves, right, strict=True):
        assert torch.equal(leaf.grad, gradient)


def test_hooks_of_saved_tensors_see_them():
    leaves, packed = [tensor.requires_grad_() for tensor in draw(2, 4)], []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.clone()

    with accelerate():
        torch.manual_seed(1)
        right = torch.autograd.grad(
            F.scaled_dot_product_attention(*leaves, dropout_p=0.5).square().sum(), leaves
        )
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.clone):
            output = F.scaled_dot_product_attention(*leaves, dropout_p=0.5)
        gradients = torch.autograd.grad(output.square().sum(), leaves)
    assert {leaf.shape for leaf in leaves} <= set(packed)
    assert all(map(torch.equal, gradients, right))


def test_a_changed_input_is_an_error_in_the_backward_pass():
    leaf, (_, key, value) = draw(2, 4)[0].requires_grad_(), draw(2, 4)
    with accelerate():
        output = F.scaled_dot_product_attention(leaf, key, value, dropout_p=0.5)
        key.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def test_autocast():
    tensors, options = CALLS["mask with gradient, of T5"]()
    with torch.autocast("cpu", torch.bfloat16):
        theirs = attend(tensors, options)
        with accelerate() as acceleration:
            ours = attend(tensors, options)
    assert acceleration.report().calls[0][0].dtype == "bfloat16"
    assert acceleration.report().served == 2
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == their.dtype
        torch.testing.assert_close(our, their, rtol=0.05, atol=0.05)


# --- derivatives of other kinds ------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_second_derivatives_are_pytorchs(call):
    def second(tensors, options):
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        attn_mask = options.get("attn_mask")
        if attn_mask is not None and attn_mask.is_floating_point():
            leaves.append(attn_mask.detach().requires_grad_())
            options = options | {"attn_mask": leaves[-1]}
        output = F.scaled_dot_product_attention(*leaves[:3], **options)
        gradients = torch.autograd.grad(output.pow(3).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(g.pow(3).sum() for g in gradients), leaves)

    tensors, options = CALLS[call]()
    theirs = second(*converted(tensors, options, torch.float64))
    with accelerate() as acceleration:
        ours = second(tensors, options)
    assert acceleration.report().served == 3  # the second backward pass goes through the first, too
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our.double(), their, rtol=1e-3, atol=1e-3 * their.abs().max())


def test_second_derivatives_drop_the_same_weights():
    x = torch.randn(1, 2, 70, 16)

    def second(x, attention):
        x = x.requires_grad_()
        (gradient,) = torch.autograd.grad(attention(x).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.pow(3).sum(), x)[0]

    torch.manual_seed(1)
    seed = draw_seed()
    right = second(
        x.double(),
        lambda x: reference.attend(AttentionProblem(x, x, x, dropout_p=0.3), seed)[0],
    )
    torch.manual_seed(1)
    with accelerate():
        ours = second(x, lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3))
    torch.testing.assert_close(ours.double(), right, rtol=1e-3, atol=1e-3 * right.abs().max())


@pytest.mark.parametrize("call", ["value size", "3-D"])
def test_transforms_of_torch_func_return_what_they_do_without(call):
    tensors, options = CALLS[call]()

    def attention(*tensors):
        return F.scaled_dot_product_attention(*tensors, **options)

    def transformed():
        mapped = torch.func.vmap(attention)(*(torch.stack([x, x.flip(-1)]) for x in tensors))
        gradient = torch.func.grad(lambda *x: attention(*x).square().sum())(*tensors)
        primal, tangent = torch.func.jvp(attention, tuple(tensors), tuple(map(torch.cos, tensors)))
        return mapped, gradient, primal, tangent

    theirs = transformed()
    with accelerate() as acceleration:
        ours = transformed()
    assert all(map(torch.equal, ours, theirs))
    report = acceleration.report()
    assert report.served == 0
    assert all("torch.func's transforms" in kind.passed_on for kind, _ in report.calls)


def test_vmap_draws_dropout_as_without():
    tensors = draw(2, 4)

    def mapped():
        torch.manual_seed(1)
        attention = torch.func.vmap(
            lambda *x: F.scaled_dot_product_attention(*x, dropout_p=0.5), randomness="different"
        )
        return attention(*(torch.stack([x, x]) for x in tensors))

    theirs = mapped()
    with accelerate():
        assert torch.equal(mapped(), theirs)


def test_functional_call():
    module = torch.nn.MultiheadAttention(32, 4, dropout=0.5, batch_first=True)
    tokens = torch.randn(2, 70, 32)
    weights = {name: weight * 2 for name, weight in module.named_parameters()}
    with accelerate() as acceleration:
        torch.manual_seed(1)
        ours = torch.func.functional_call(
            module, weights, (tokens, tokens, tokens), {"need_weights": False}
        )[0]
        module.load_state_dict(weights)
        torch.manual_seed(1)
        assert torch.equal(ours, module(tokens, tokens, tokens, need_weights=False)[0])
    assert acceleration.report().served == 2


# --- what is left to PyTorch ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["value size", "mask with gradient, of T5"])
def test_the_kernel_that_the_user_names_is_used(call):
    arguments = CALLS[call]()
    with sdpa_kernel(SDPBackend.MATH):
        theirs = attend(*arguments)
        with accelerate() as acceleration:
            ours = attend(*arguments)
    assert all(map(torch.equal, ours, theirs))
    ((kind, count),) = acceleration.report().calls
    assert count == 1
    assert "sdpa_kernel" in kind.passed_on
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        with pytest.raises(RuntimeError) as their_error:
            attend(*arguments)
        with accelerate(), pytest.raises(RuntimeError) as our_error:
            attend(*arguments)
    assert str(our_error.value) == str(their_error.value)


def test_few_queries_are_passed_on_if_they_are_differentiated():
    arguments = draw(2, 4, Tq=63), {"attn_mask": torch.randn(63, 90)}
    theirs = attend(*arguments)
    with accelerate() as acceleration:
        ours = attend(*arguments)
        F.scaled_dot_product_attention(*arguments[0], **arguments[1])
    assert all(map(torch.equal, ours, theirs))
    assert (acceleration.report().served, acceleration.report().passed_on) == (1, 1)
    assert "fewer than 64 queries" in str(acceleration.report())


def test_float64_is_passed_on_unchanged():
    arguments = converted(*CALLS["3-D"](), torch.float64)
    theirs = attend(*arguments)
    with accelerate() as acceleration:
        ours = attend(*arguments)
    assert all(map(torch.equal, ours, theirs))
    assert "no float64" in str(acceleration.report())
    assert acceleration.report().passed_on == 1


# --- compiled graphs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", CALLS)
def test_compiled_calls_return_the_same(call):
    arguments = CALLS[call]()
    exact = attend(*converted(*arguments, torch.float64))
    torch.compiler.reset()
    with accelerate():
        compiled = torch.compile(
            F.scaled_dot_product_attention, backend="aot_eager", fullgraph=True
        )
        tensors, options = arguments
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        attn_mask = options.get("attn_mask")
        if attn_mask is not None and attn_mask.is_floating_point():
            leaves.append(attn_mask.detach().requires_grad_())
            options = options | {"attn_mask": leaves[-1]}
        output = compiled(*leaves[:3], **options)
        weights = torch.linspace(-1, 1, output.shape[-1])
        gradients = torch.autograd.grad((output * weights).sum(), leaves)
    for our, right in zip((output, *gradients), exact, strict=True):
        torch.testing.assert_close(our.double(), right, rtol=1e-3, atol=1e-4)


def test_compiled_dropout_is_that_of_our_generator():
    tensors = draw(2, 4)
    torch.compiler.reset()

    def call(*tensors):
        return F.scaled_dot_product_attention(*tensors, dropout_p=0.5)

    with accelerate():
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        results = []
        for function in (call, compiled):
            leaves = [tensor.detach().requires_grad_() for tensor in tensors]
            torch.manual_seed(1)
            output = function(*leaves)
            results.append([output, *torch.autograd.grad(output.square().sum(), leaves)])
    for eager, graph in zip(*results, strict=True):
        torch.testing.assert_close(graph, eager)


def test_graphs_follow_acceleration_if_they_are_compiled_again():
    leaf, (_, key, value) = draw(2, 4)[0].requires_grad_(), draw(2, 4)
    results = []

    def compiled():
        torch.compiler.reset()
        call = torch.compile(
            lambda *x: F.scaled_dot_product_attention(*x, dropout_p=0.5), backend="aot_eager"
        )
        torch.manual_seed(1)
        return torch.autograd.grad(call(leaf, key, value).sum(), leaf)[0]

    results = [compiled()]
    with accelerate():
        results.append(compiled())
    results.append(compiled())
    assert not torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_graphs_on_disk_are_told_apart():
    with compiler_config.patch(cache_key_tag="theirs"):
        with accelerate(), accelerate():
            assert compiler_config.cache_key_tag not in ("", "theirs")
        assert compiler_config.cache_key_tag == "theirs"


SMALL_CALLS = {
    "plain": lambda: (draw(2, 4, Tq=1, Tk=9), {}),
    "causal": lambda: (draw(2, 4, Tq=5, Tk=5), {"is_causal": True}),
    "tokens first": lambda: (tokens_first(draw(2, 4, Tq=5, Tk=9)), {}),
    "value size": lambda: (tokens_first(draw(2, 4, Tq=5, Tk=9, Dv=24)), {}),
    "value size, grouped": lambda: (
        [draw(2, 4, Tq=5)[0], *draw(2, 2, Tk=9, Dv=24)[1:]],
        {"enable_gqa": True},
    ),
    "scaled": lambda: (draw(2, 4, Tq=1, Tk=9), {"scale": 0.3}),
}


@pytest.mark.parametrize("call", SMALL_CALLS.values(), ids=SMALL_CALLS)
def test_small_calls_that_are_made_again_return_the_same_in_the_same_layout(call):
    with torch.no_grad():
        for _ in range(4):
            tensors, options = call()
            for _ in range(3):  # attention() may compute the same, and returns another layout
                attention(*tensors, scale=options.get("scale"))
            expected = F.scaled_dot_product_attention(*tensors, **options)
            with accelerate() as acceleration:
                output = F.scaled_dot_product_attention(*tensors, **options)
            torch.testing.assert_close(output, expected)
            assert output.stride() == expected.stride()
            assert acceleration.report().served == 1


def test_a_small_call_that_is_made_again_has_gradients_and_the_kernel_that_the_user_names():
    tensors, _ = SMALL_CALLS["plain"]()
    with accelerate():
        for _ in range(3):
            F.scaled_dot_product_attention(*tensors)
        output = F.scaled_dot_product_attention(tensors[0].requires_grad_(), *tensors[1:])
        assert output.requires_grad
        tensors[0].requires_grad_(False)
        with sdpa_kernel(SDPBackend.MATH), accelerate() as acceleration:
            F.scaled_dot_product_attention(*tensors)
    assert acceleration.report().served == 0


def test_gradients_are_right_where_a_finite_mask_hides_every_key_of_a_query():
    query, key, value = (torch.randn(1, 2, 70, 64) for _ in range(3))
    mask = torch.zeros(70, 70)
    mask[[0, 33]] = torch.finfo(torch.float32).min

    def gradients(function, dtype):
        inputs = [it.clone().to(dtype).requires_grad_() for it in (query, key, value)]
        function(*inputs, mask.to(dtype)).square().sum().backward()
        return [it.grad for it in inputs]

    def plain(query, key, value, mask):
        return (query @ key.mT / 8 + mask).softmax(-1) @ value

    with accelerate():
        ours = gradients(F.scaled_dot_product_attention, torch.float32)
    for actual, expected in zip(ours, gradients(plain, torch.float64), strict=True):
        torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-5)
