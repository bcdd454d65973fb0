"""Tests of the modules under torch.compile(fullgraph=True) and torch.export, with and without a cache."""

import io

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.export import Dim, export

from heedful import Padding
from heedful.nn import KVCache, MultiHeadAttention, RotaryEmbedding

B, C = 2, 32
MODULES = {
    "plain": {},
    "rotary": {"num_kv_heads": 2, "rotary": RotaryEmbedding(8), "bias": True},
    "interleaved, window": {"rotary": RotaryEmbedding(8, layout="interleaved"), "window": 4},
}
each_module = pytest.mark.parametrize("options", MODULES.values(), ids=MODULES)


@pytest.fixture(autouse=True)
def forgotten():
    """Use one thread, and discard what other tests compiled."""
    torch.set_num_threads(1)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def build(options):
    return MultiHeadAttention(C, 4, **options).eval()


def empty(module, capacity=20):
    cache = KVCache.empty(B, module.num_kv_heads, capacity, module.head_dim)
    cache.key.fill_(torch.nan)
    cache.value.fill_(torch.nan)
    return cache


@each_module
def test_a_compiled_module_accepts_any_length(options):
    module, counter = build(options), CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for T in (7, 5, 9, 13):
        x = torch.randn(B, T, C)
        torch.testing.assert_close(compiled(x), module(x))
    assert counter.frame_count <= 2  # once for the first length, and once for all others


@each_module
def test_a_compiled_module_generates(options):
    """A step is compiled once, not once for each length of the cache."""
    module, counter = build(options), CompileCounter()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    x, outputs, cache = torch.randn(B, 14, C), [], empty(module)
    with torch.no_grad():
        for piece in x.split((4, *(1,) * 10), dim=1):
            output, cache = compiled(piece, cache=cache)
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs, dim=1), module(x))
    assert cache.length == 14
    assert cache.key[:, :, 14:].isnan().all()
    assert counter.frame_count <= 3


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_gradients_through_a_compiled_module(backend):
    module = build(MODULES["rotary"])
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    x, lengths = torch.randn(B, 7, C), torch.tensor([7, 4])
    expected, received = (
        torch.autograd.grad(run(x, mask=Padding(lengths)).square().sum(), list(module.parameters()))
        for run in (module, compiled)
    )
    torch.testing.assert_close(received, expected)


def test_compiled_cross_attention():
    module = MultiHeadAttention(C, 4, d_context=6)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for Tk in (3, 8):
        x, context = torch.randn(B, 5, C), torch.randn(B, Tk, 6)
        torch.testing.assert_close(compiled(x, context), module(x, context))


@each_module
@pytest.mark.parametrize("strict", [False, True], ids=["traced", "strict"])
def test_an_exported_module_accepts_any_length(options, strict):
    module = build(options)
    x = (torch.randn(B, 7, C),)
    exported = export(module, x, dynamic_shapes=({1: Dim("T", min=2)},), strict=strict).module()
    for T in (2, 11):
        x = torch.randn(B, T, C)
        torch.testing.assert_close(exported(x), module(x))


@each_module
@pytest.mark.parametrize("T", [1, 3])
@torch.no_grad()
def test_an_exported_module_generates(options, T):
    """The cache is an input and an output, and its length is not a constant of the program."""
    module = build(options)
    _, begun = module(torch.randn(B, 4, C), cache=empty(module))
    shapes = {"x": None, "cache": [None, None, Dim.DYNAMIC]}
    program = export(module, (torch.randn(B, T, C),), {"cache": begun}, dynamic_shapes=shapes)
    for exported in (program.module(), program.run_decompositions().module()):
        x, outputs = torch.randn(B, 10, C), []
        _, cache = module(x[:, :4], cache=empty(module))
        for piece in x[:, 4:].split(T, dim=1):
            output, cache = exported(piece.contiguous(), cache=cache)  # as in the example
            outputs.append(output)
        assert (type(cache), cache.length) == (KVCache, 10)
        torch.testing.assert_close(torch.cat(outputs, dim=1), module(x)[:, 4:])


@torch.no_grad()
def test_an_exported_step_for_one_cache_length_refuses_others():
    module = build({})
    _, cache = module(torch.randn(B, 4, C), cache=empty(module))
    step = export(module, (torch.randn(B, 1, C),), {"cache": cache}).module()
    _, longer = module(torch.randn(B, 1, C), cache=cache)
    with pytest.raises(AssertionError, match=r"length == 4"):
        step(torch.randn(B, 1, C), cache=longer)


def test_a_program_with_a_cache_can_be_saved():
    module = build(MODULES["rotary"])
    with torch.no_grad():
        _, cache = module(torch.randn(B, 4, C), cache=empty(module))
        x = torch.randn(B, 1, C)
        file = io.BytesIO()
        torch.export.save(export(module, (x,), {"cache": cache}), file)
        assert b"heedful.nn.KVCache" in file.getvalue()
