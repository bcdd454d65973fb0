"""PyTorch's own samples of attention (its OpInfo) give the same with heedful behind its function or in its place.

`make test-pytorch` runs PyTorch's test files themselves.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils import _pytree as pytree

import heedful
from heedful.kernels.native import library

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of PyTorch's own test code
    from torch.testing._internal.common_methods_invocations import op_db

pytestmark = [
    pytest.mark.skipif(library.missing is not None, reason="the native library is missing"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]
SDPA, MHA = "scaled_dot_product_attention", "multi_head_attention_forward"
OPS = {name: next(op for op in op_db if op.name == f"nn.functional.{name}") for name in (SDPA, MHA)}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
TOLERANCES = {torch.float64: 1e-7, torch.float32: 5e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}
FLOAT32_TOLERANCES = {SDPA: 5e-5, MHA: 5e-3}  # absolute, those of PyTorch's OpInfo
MAX_ERROR_RATIO = 1.5  # of low precision, relative to PyTorch's error; both compared with float64


@contextmanager
def replaced() -> Iterator[None]:
    original = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = heedful.scaled_dot_product_attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original


MODES = {"accelerated": heedful.accelerate, "replaced": replaced}
Mode = Callable[[], AbstractContextManager[Any]]
in_every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
of_every_function = pytest.mark.parametrize("name", [SDPA, MHA])


class Sample(NamedTuple):
    """The arguments of a call of PyTorch's, as a tree with tensors as leaves."""

    name: str
    arguments: tuple[Any, dict[str, Any]]

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves(self.arguments) if isinstance(leaf, Tensor)]

    def map(self, function: Callable[[Tensor], Any]) -> "Sample":
        return Sample(self.name, pytree.tree_map_only(Tensor, function, self.arguments))

    def with_tensors(self, tensors: tuple[Tensor, ...]) -> "Sample":
        remaining = iter(tensors)
        return self.map(lambda _: next(remaining))

    def call(self) -> Tensor:
        args, kwargs = self.arguments
        if self.name == SDPA:
            return F.scaled_dot_product_attention(*args, **kwargs)
        return F.multi_head_attention_forward(*args, **kwargs, need_weights=False)[0]


def samples(name: str, dtype: torch.dtype) -> list[Sample]:
    """Return PyTorch's samples without those with dropout, because each kernel drops other weights."""
    torch.manual_seed(0)
    op = OPS[name]
    drawn = [*op.sample_inputs("cpu", dtype), *op.reference_inputs("cpu", dtype)]
    drops = [s.kwargs["dropout_p"] > 0 if name == SDPA else s.kwargs["training"] for s in drawn]
    kept = [
        Sample(name, ((sample.input, *sample.args), sample.kwargs))
        for sample, drop in zip(drawn, drops, strict=True)
        if not drop
    ]
    return (
        kept if name == SDPA else kept[::8]
    )  # which keeps every kind of mask, batch and projection


def results(sample: Sample) -> list[Tensor]:
    """Return the output and the gradients of all tensors."""
    leaves = [tensor.detach().requires_grad_() for tensor in sample.tensors()]
    output = sample.with_tensors(tuple(leaves)).call()
    cotangent = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    gradients = torch.autograd.grad(output, leaves, cotangent, allow_unused=True)
    return [output.detach(), *(gradient for gradient in gradients if gradient is not None)]


class Error(NamedTuple):
    """An error that a call raised."""

    type: type
    message: str


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or its error."""
    try:
        return call()
    except (RuntimeError, TypeError, IndexError) as error:
        return Error(type(error), str(error).partition("\n")[0])


def assert_agrees(name: str, ours: Tensor, theirs: Tensor, exact: Tensor) -> None:
    """Assert that our error is at most `MAX_ERROR_RATIO` times PyTorch's, or within its own tolerance for float32."""
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if ours.dtype == torch.float64:
        assert_close(ours, theirs)
        return
    error, their_error = ((x.double() - exact).abs().max().item() for x in (ours, theirs))
    largest = exact.abs().max().item()
    rounding = torch.finfo(ours.dtype).eps * largest
    tolerated = FLOAT32_TOLERANCES[name] + 1e-5 * largest if ours.dtype == torch.float32 else 0.0
    assert error <= max(MAX_ERROR_RATIO * their_error + 4 * rounding, tolerated)


def assert_same_outcome(ours: Any, theirs: Any, tolerance: float) -> None:
    """Assert that results are close and errors equal. Where PyTorch has no derivative, heedful may have one."""
    if isinstance(theirs, Error):
        assert ours == theirs or (
            theirs.type is NotImplementedError and not isinstance(ours, Error)
        )
    else:
        assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@in_every_mode
@of_every_function
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_and_gradients_are_the_same(mode, name, dtype):
    assert dtype in OPS[name].dtypes
    for sample in samples(name, dtype):
        theirs = results(sample)
        with mode():
            ours = results(sample)
        assert len(ours) == len(theirs)
        exact = results(sample.map(Tensor.double))
        for our, their, right in zip(ours, theirs, exact, strict=True):
            assert_agrees(name, our, their, right)


@in_every_mode
@of_every_function
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inference_returns_the_same(mode, name, dtype):
    for sample in samples(name, dtype):
        theirs, exact = sample.call(), sample.map(Tensor.double).call()
        with mode():
            ours = sample.call()
        assert_agrees(name, ours, theirs, exact)
        assert ours.requires_grad == theirs.requires_grad


@in_every_mode
@of_every_function
def test_numerical_gradients_agree(mode, name):
    for sample in samples(name, torch.float64)[-4:]:
        leaves = tuple(tensor.detach().requires_grad_() for tensor in sample.tensors())

        def call(*tensors, sample=sample):
            return sample.with_tensors(tensors).call()

        def check_twice(leaves=leaves, call=call):
            return torch.autograd.gradgradcheck(call, leaves, fast_mode=True)

        theirs = outcome(check_twice)
        with mode():
            assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
            ours = outcome(check_twice)
        if isinstance(
            theirs, Error
        ):  # their fused kernel is differentiable once, whatever the dtype
            assert "is not implemented" in theirs.message
        if not isinstance(theirs, Error) or mode is replaced:
            assert ours is True


@in_every_mode
@of_every_function
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_forward_mode_derivatives_are_the_same(mode, name, dtype):
    def derivative(sample):
        tensors = tuple(sample.tensors())
        tangents = tuple(torch.cos(tensor) for tensor in tensors)
        return torch.func.jvp(lambda *t: sample.with_tensors(t).call(), tensors, tangents)

    for sample in samples(name, dtype):
        theirs = outcome(lambda sample=sample: derivative(sample))
        with mode():
            ours = outcome(lambda sample=sample: derivative(sample))
        assert_same_outcome(ours, theirs, TOLERANCES[dtype])


@in_every_mode
@of_every_function
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_vmap_returns_the_same(mode, name, dtype):
    def mapped(sample):
        tensors = tuple(torch.stack([tensor, tensor.flip(-1)]) for tensor in sample.tensors())
        return torch.func.vmap(lambda *t: sample.with_tensors(t).call())(*tensors)

    for sample in samples(name, dtype):
        theirs = outcome(lambda sample=sample: mapped(sample))
        with mode():
            ours = outcome(lambda sample=sample: mapped(sample))
        assert_same_outcome(ours, theirs, TOLERANCES[dtype])


@in_every_mode
@of_every_function
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_meta_and_fake_tensors_have_the_layout_of_the_result(mode, name, dtype):
    for sample in samples(name, dtype):
        theirs = sample.call()
        with mode():
            ours = sample.call()
            meta = sample.map(lambda tensor: tensor.to("meta")).call()
            with FakeTensorMode() as fake_mode:
                fake = sample.map(fake_mode.from_tensor).call()
        assert meta.is_meta
        assert (meta.shape, meta.dtype) == (theirs.shape, theirs.dtype)
        assert (fake.shape, fake.dtype, fake.device) == (ours.shape, ours.dtype, ours.device)
        assert fake.stride() == ours.stride()
        if mode is heedful.accelerate:
            assert ours.stride() == theirs.stride()


@pytest.mark.slow
@in_every_mode
@of_every_function
def test_compiled_calls_return_the_same(mode, name):
    for sample in samples(name, torch.float32):
        theirs = results(sample)
        torch.compiler.reset()
        compiled = torch.compile(Sample.call, backend="aot_eager", fullgraph=True)
        leaves = [tensor.detach().requires_grad_() for tensor in sample.tensors()]
        with mode():
            output = compiled(sample.with_tensors(tuple(leaves)))
            cotangent = torch.linspace(-1, 1, output.numel()).view_as(output)
            gradients = torch.autograd.grad(output, leaves, cotangent, allow_unused=True)
        ours = [output.detach(), *(gradient for gradient in gradients if gradient is not None)]
        for our, their, right in zip(ours, theirs, results(sample.map(Tensor.double)), strict=True):
            assert_agrees(name, our, their, right)


# Changes that make a sample invalid or unusual. PyTorch has no error inputs of these functions.
CHANGES: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "key of another dtype": lambda args, _: args.__setitem__(1, args[1].long()),
    "value of another dtype": lambda args, _: args.__setitem__(2, args[2].double()),
    "key of another size": lambda args, _: args.__setitem__(1, args[1][..., 1:]),
    "value of other tokens": lambda args, _: args.__setitem__(2, args[2][..., 1:, :]),
    "value of another size": lambda args, _: args.__setitem__(2, args[2][..., 1:]),
    "key of another batch": lambda args, _: args.__setitem__(1, args[1][1:]),
    "no tokens": lambda args, _: args.__setitem__(0, args[0][..., :0, :]),
    "no keys": lambda args, _: args.__setitem__(slice(1, 3), [args[1][..., :0, :], args[2][..., :0, :]]),
    "one dimension": lambda args, _: args.__setitem__(0, args[0].flatten()),
    "complex": lambda args, _: args.__setitem__(slice(0, 3), [x + 0j for x in args[:3]]),
    "integers": lambda args, _: args.__setitem__(slice(0, 3), [x.long() for x in args[:3]]),
    "no tensor": lambda args, _: args.__setitem__(0, [1.0]),
    "None": lambda args, _: args.__setitem__(1, None),
    "mask of integers": lambda _, kwargs: kwargs.update(attn_mask=torch.ones(3, 6, dtype=torch.int)),
    "mask of another shape": lambda _, kwargs: kwargs.update(attn_mask=torch.ones(2, 7)),
    "mask of another dtype": lambda _, kwargs: kwargs.update(attn_mask=torch.ones(3, 6).half()),
    "mask of one dimension": lambda _, kwargs: kwargs.update(attn_mask=torch.ones(6)),
    "mask of no tensor": lambda _, kwargs: kwargs.update(attn_mask=[[True]]),
    "causal, and a mask": lambda _, kwargs: kwargs.update(attn_mask=torch.ones(3, 6), is_causal=True),
    "dropout of 2": lambda _, kwargs: kwargs.update(dropout_p=2.0),
    "dropout of -1": lambda _, kwargs: kwargs.update(dropout_p=-1.0),
    "scale 0": lambda _, kwargs: kwargs.update(scale=0.0),
    "scale of no number": lambda _, kwargs: kwargs.update(scale="1"),
    "dropout of no number": lambda _, kwargs: kwargs.update(dropout_p="1"),
    "scale of a tensor": lambda _, kwargs: kwargs.update(scale=torch.tensor(0.5)),
    "is_causal of no Boolean": lambda _, kwargs: kwargs.update(is_causal=1),
    "enable_gqa of no Boolean": lambda _, kwargs: kwargs.update(enable_gqa=1),
    "an unknown argument": lambda _, kwargs: kwargs.update(need_lse=True),
    "grouped": lambda _, kwargs: kwargs.update(enable_gqa=True),
    "grouped, with fewer heads": lambda args, kwargs: (
        args.__setitem__(slice(1, 3), [x[..., :2, :, :] if x.dim() > 3 else x[:2] for x in args[1:3]]),
        kwargs.update(enable_gqa=True),
    ),
    "three heads of four": lambda args, kwargs: (
        args.__setitem__(slice(1, 3), [x[..., :3, :, :] if x.dim() > 3 else x[:3] for x in args[1:3]]),
        kwargs.update(enable_gqa=True),
    ),
}  # fmt: skip


# PyTorch's own defects: it refuses a mask of one dimension for a query of four, and scale 0 with a causal mask is NaN.
MORE_LENIENT = {"mask of one dimension", "scale 0"}


@in_every_mode
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, marks=pytest.mark.slow),
        pytest.param(torch.float64, marks=pytest.mark.slow),
        torch.bfloat16,
    ],
    ids=str,
)
def test_errors_are_the_same(mode, change, dtype):
    assert not any(op.error_inputs_func for op in OPS.values())  # or test them here
    for sample in samples(SDPA, dtype)[::3]:  # every rank and mask is among them
        args, kwargs = list(sample.arguments[0]), dict(sample.arguments[1])
        CHANGES[change](args, kwargs)
        changed = Sample(SDPA, (tuple(args), kwargs))
        theirs = outcome(changed.call)
        with mode():
            ours = outcome(changed.call)
        if change in MORE_LENIENT and (isinstance(theirs, Error) or theirs.isnan().any()):
            assert ours == theirs if isinstance(ours, Error) else ours.shape == sample.call().shape
        else:
            assert_same_outcome(ours, theirs, TOLERANCES[dtype])
