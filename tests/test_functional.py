"""attention(), and the drop-in replacement for PyTorch's scaled_dot_product_attention()."""

import inspect
import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import heedful
from heedful import AttentionResult, Causal, Documents, Padding, Sinks, Window, attention

DROP_IN = heedful.scaled_dot_product_attention


def test_the_drop_in_has_pytorchs_signature():
    ours = inspect.signature(DROP_IN).parameters
    assert list(ours) == [
        "query",
        "key",
        "value",
        "attn_mask",
        "dropout_p",
        "is_causal",
        "scale",
        "enable_gqa",
    ]
    defaults = {n: p.default for n, p in ours.items() if p.default is not inspect.Parameter.empty}
    assert defaults == {
        "attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False,
    }  # fmt: skip


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"is_causal": True},
        {"scale": 0.7},
        {"attn_mask": torch.rand(5, 7) > 0.3},
        {"attn_mask": torch.randn(5, 7)},
        {"attn_mask": torch.zeros(5, 7, dtype=torch.bool)},
    ],
    ids=["plain", "causal", "scale", "Boolean", "added", "all hidden"],
)
def test_the_drop_in_returns_what_pytorch_returns(leading, dtype, arguments):
    query, key, value = (
        torch.randn(*leading, T, D, dtype=dtype) for T, D in ((5, 8), (7, 8), (7, 6))
    )
    if "attn_mask" in arguments and arguments["attn_mask"].is_floating_point():
        arguments = {"attn_mask": arguments["attn_mask"].to(dtype)}
    ours, theirs = (
        f(query, key, value, **arguments) for f in (DROP_IN, F.scaled_dot_product_attention)
    )
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    rounding = {"atol": 1e-2, "rtol": 1.6e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(ours, theirs, **rounding)


@pytest.mark.parametrize("mask_shape", [(2, 1, 1, 5, 7), (1, 3, 5, 7), (1, 1, 7)], ids=str)
def test_masks_of_five_dimensional_problems_broadcast(mask_shape):
    query, key = torch.randn(2, 2, 3, 5, 8), torch.randn(2, 2, 3, 7, 8)
    mask = torch.rand(mask_shape) > 0.3
    torch.testing.assert_close(
        DROP_IN(query, key, key, mask), F.scaled_dot_product_attention(query, key, key, mask)
    )


def test_grouped_heads_need_enable_gqa_as_in_pytorch():
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    torch.testing.assert_close(
        DROP_IN(query, key, key, enable_gqa=True),
        F.scaled_dot_product_attention(query, key, key, enable_gqa=True),
    )
    with pytest.raises(RuntimeError):
        DROP_IN(query, key, key)


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 7), torch.randn(1, 2, 5, 7)),
        (torch.randn(8), torch.randn(5, 8), torch.randn(5, 8)),
        (torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8).double(), torch.randn(1, 2, 5, 8)),
        (*[torch.randn(1, 2, 5, 8)] * 3, torch.ones(5, 5).bool(), 0.1, True),
        (*[torch.randn(1, 2, 5, 8)] * 3, torch.ones(4, 4).bool()),
        (*[torch.randn(1, 2, 5, 8)] * 3, torch.ones(5, 5).int()),
        (*[torch.randn(1, 2, 5, 8)] * 3, None, 1.5),
        ([1.0], torch.randn(5, 8), torch.randn(5, 8)),
    ],
    ids=[
        "head size",
        "one dimension",
        "dtypes",
        "mask and causal",
        "mask size",
        "mask dtype",
        "dropout",
        "list",
    ],
)
def test_the_drop_in_raises_what_pytorch_raises(arguments):
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - any error, which ours must equal
        F.scaled_dot_product_attention(*arguments)
    with pytest.raises(theirs.type) as ours:
        DROP_IN(*arguments)
    assert str(ours.value) == str(theirs.value)


CAUSAL_BIASES = {
    "upper left": lambda: causal_upper_left(5, 7),
    "lower right": lambda: causal_lower_right(5, 7),
    "square": lambda: causal_lower_right(6, 6),  # PyTorch reads it as is_causal, whatever the sizes
}


@pytest.mark.parametrize("make_bias", CAUSAL_BIASES.values(), ids=CAUSAL_BIASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("replaced", [False, True], ids=["", "replaced"])
def test_a_causal_bias_means_what_it_means_to_pytorch(monkeypatch, make_bias, dtype, replaced):
    query, key = torch.randn(3, 2, 5, 8, dtype=dtype), torch.randn(3, 2, 7, 8, dtype=dtype)
    expected = F.scaled_dot_product_attention(query, key, key, make_bias())
    if replaced:
        monkeypatch.setattr(F, "scaled_dot_product_attention", DROP_IN)
    torch.testing.assert_close(DROP_IN(query, key, key, make_bias()), expected)


def test_a_causal_bias_compiles():
    query, key, bias = torch.randn(3, 2, 5, 8), torch.randn(3, 2, 7, 8), causal_lower_right(5, 7)
    compiled = torch.compile(DROP_IN, backend="aot_eager")
    expected = F.scaled_dot_product_attention(query, key, key, bias)
    torch.testing.assert_close(compiled(query, key, key, bias), expected)


def test_errors_of_a_causal_bias_are_pytorchs_also_where_ours_replaces_its_function(monkeypatch):
    query, key = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)
    for arguments in ((causal_upper_left(5, 7), 0.0, True), (causal_lower_right(4, 7),)):
        with pytest.raises(Exception) as theirs:  # noqa: PT011 - any error, which ours must equal
            F.scaled_dot_product_attention(query, key, key, *arguments)
        for function in (F.scaled_dot_product_attention, DROP_IN):
            monkeypatch.setattr(F, "scaled_dot_product_attention", function)
            with pytest.raises(theirs.type) as ours:
                DROP_IN(query, key, key, *arguments)
            assert str(ours.value) == str(theirs.value)
        monkeypatch.undo()


def test_torchscript_compiles_modules_where_ours_replaces_pytorchs_function(monkeypatch):
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    tokens = torch.randn(2, 5, 8)
    expected, _ = module(tokens, tokens, tokens, need_weights=False)
    monkeypatch.setattr(F, "scaled_dot_product_attention", DROP_IN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript
        scripted = torch.jit.script(module)
    output, _ = scripted(tokens, tokens, tokens, need_weights=False)
    torch.testing.assert_close(output, expected)


def test_a_causal_bias_is_no_bias_of_attention():
    query = torch.randn(1, 2, 5, 8)
    with pytest.raises(heedful.ArgumentError, match=r"Pass mask=Causal"):
        attention(query, query, query, bias=causal_upper_left(5, 5))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_drop_in_may_replace_pytorchs_function(monkeypatch):
    nested = torch.nested.nested_tensor([torch.randn(n, 16) for n in (3, 5)], layout=torch.jagged)
    nested = nested.unflatten(-1, (2, 8)).transpose(1, 2)
    query = torch.randn(1, 2, 5, 8)
    calls = {
        "ours": lambda: F.scaled_dot_product_attention(query, query, query),
        "float64": lambda: F.scaled_dot_product_attention(*[query.double()] * 3),
        "broadcast batch": lambda: F.scaled_dot_product_attention(
            query.expand(3, 2, 5, 8), query, query
        ),
        "nested": lambda: F.scaled_dot_product_attention(nested, nested, nested).values(),
        "torch.func": lambda: torch.func.grad(
            lambda x: F.scaled_dot_product_attention(x, x, x).square().sum()
        )(query),
        "by name": lambda: attention(query, query, query, kernel="torch_sdpa"),
    }
    expected = {name: call() for name, call in calls.items()}
    with pytest.raises(RuntimeError) as theirs:
        F.scaled_dot_product_attention(query, query[..., :3], query)
    monkeypatch.setattr(F, "scaled_dot_product_attention", DROP_IN)
    for name, call in calls.items():
        torch.testing.assert_close(call(), expected[name])
    with pytest.raises(RuntimeError) as ours:
        F.scaled_dot_product_attention(query, query[..., :3], query)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap], ids=["grad", "vmap"])
def test_a_boolean_mask_may_be_mapped_over(transform):
    query, key, masks = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8), torch.rand(3, 5, 7) > 0.3
    masks[1, 2], masks[2, :, 3] = False, False  # a query that sees no key, a key that no query sees

    def run(function):
        def summed(query, mask):
            return function(query, key, key, mask).square().sum()

        inner = torch.func.grad(summed) if transform is torch.func.grad else summed
        return torch.func.vmap(inner, in_dims=(None, 0))(query, masks)

    torch.testing.assert_close(run(DROP_IN), run(F.scaled_dot_product_attention))
    torch.testing.assert_close(run(attention), run(F.scaled_dot_product_attention))


@pytest.mark.parametrize("kernel", ["auto", "torch_sdpa", "reference", "online"])
def test_meta_tensors_take_a_boolean_mask(kernel):
    query, key, mask = (
        torch.empty(shape, device="meta") for shape in ((2, 4, 5, 8), (2, 2, 7, 8), (5, 7))
    )
    output = attention(query, key, key, mask.bool(), kernel=kernel)
    assert (output.shape, output.device.type) == (query.shape, "meta")
    documents = Documents(torch.empty(2, 7, dtype=torch.long, device="meta"))
    assert attention(key, key, key, documents & Causal(), kernel=kernel).shape == key.shape
    assert DROP_IN(query, query, query, mask.bool()[:, :5]).device.type == "meta"


def test_dropout_of_the_drop_in_uses_torchs_generator():
    query, value = torch.randn(1, 2, 64, 8), torch.eye(64).expand(1, 2, 64, 64)
    first, second = (DROP_IN(query, query, value, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    query = torch.randn(1, 2, 64, 8)
    assert torch.equal(DROP_IN(query, query, value, dropout_p=0.5), first)
    assert 0.45 < (first == 0).float().mean() < 0.55


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_go_to_pytorch():
    pieces = [torch.randn(n, 2, 8) for n in (3, 5)]
    nested = torch.nested.nested_tensor(pieces, layout=torch.jagged).transpose(1, 2)
    output = DROP_IN(nested, nested, nested)
    expected = F.scaled_dot_product_attention(*(pieces[0].transpose(0, 1)[None],) * 3)
    torch.testing.assert_close(output.unbind()[0], expected[0])


LAZY_VIEWS = {
    "negated": torch._neg_view,
    "imaginary part of a conjugate": lambda tensor: torch.complex(tensor, -tensor).conj().imag,
    "zeros without memory": lambda tensor: torch._efficientzerotensor(tensor.shape),
}


@pytest.mark.parametrize("view", LAZY_VIEWS.values(), ids=LAZY_VIEWS)
@pytest.mark.parametrize("place", range(5), ids=["query", "key", "value", "bias", "sinks"])
def test_tensors_whose_memory_does_not_hold_their_values_are_read_right(view, place):
    tensors = [torch.randn(shape) for shape in ((1, 2, 5, 8),) * 3 + ((5, 5), (2,))]
    tensors[place] = view(tensors[place])
    plain = [tensor + 0.0 for tensor in tensors]
    query, key, value, bias, sinks = tensors
    ours = attention(query, key, value, bias=bias, sinks=sinks)
    expected = attention(*plain[:3], bias=plain[3], sinks=plain[4], kernel="reference")
    torch.testing.assert_close(ours, expected)
    if place < 4:
        torch.testing.assert_close(
            DROP_IN(query, key, value, bias),
            F.scaled_dot_product_attention(*plain[:4]),
        )


@pytest.mark.parametrize("needs_grad", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("accelerated", [False, True], ids=["drop-in", "accelerated"])
def test_a_lazily_cloned_tensor_stays_shared(needs_grad, accelerated):
    query, key, value, grad = (torch.randn(1, 2, 70, 8) for _ in range(4))
    attn_mask = torch.randn(1, 1, 70, 70)
    tensors = [torch._lazy_clone(tensor) for tensor in (query, key, value)]
    for tensor in tensors:
        tensor.requires_grad_(needs_grad)
    tensors += [torch._lazy_clone(attn_mask), torch._lazy_clone(grad)]
    with heedful.accelerate() if accelerated else nullcontext():
        attend = F.scaled_dot_product_attention if accelerated else DROP_IN
        output = attend(*tensors[:4])
        if needs_grad:
            output.backward(tensors[4])
    assert all(map(torch._C._is_cow_tensor, tensors))


def test_lse_is_returned_on_request():
    query = torch.randn(2, 3, 5, 8)
    result = attention(query, query, query, Causal(), return_lse=True)
    assert isinstance(result, AttentionResult)
    scores = (query @ query.mT / 8**0.5).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    torch.testing.assert_close(result.lse, scores.logsumexp(-1))
    torch.testing.assert_close(result.output, attention(query, query, query, Causal()))


def test_lse_is_float32_for_smaller_types():
    query = torch.randn(1, 1, 5, 8, dtype=torch.bfloat16)
    output, lse = attention(query, query, query, return_lse=True)
    assert (output.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("kernel", ["auto", "reference", "online"])
def test_autocast_casts_as_pytorch_does(kernel):
    query, key = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        ours = attention(query, key, key, kernel=kernel)
    assert ours.dtype == F.scaled_dot_product_attention(*[query.bfloat16()] * 3).dtype
    exact = attention(query.bfloat16().double(), key.double(), key.double())
    torch.testing.assert_close(ours.double(), exact, rtol=0.01, atol=0.005)


def test_softmax_statistics_stay_float32_under_autocast():
    query = torch.randn(1, 2, 50, 64).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        inside = attention(query, query, query, kernel="reference")
    assert torch.equal(inside, attention(query, query, query, kernel="reference"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": Causal()},
        {"mask": Padding([2, 5]) & Causal() & (Sinks(1) | Window(2))},
        {"mask": Documents(torch.tensor([0, 0, 1, 1, 1])), "softcap": 3.0},
        {"mask": torch.eye(5).bool(), "kernel": "online"},
    ],
    ids=["plain", "causal", "padding and sinks", "documents", "dense, online"],
)
def test_compiles_as_one_graph(options):
    query = torch.randn(2, 2, 5, 8, requires_grad=True)

    def function(query):
        return attention(query, query, query, **options).sum()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(query), function(query))
    ours, expected = (torch.autograd.grad(f(query), query) for f in (compiled, function))
    torch.testing.assert_close(ours, expected)


def test_a_mask_may_be_built_inside_the_graph():
    def function(query, lengths):
        return attention(query, query, query, Padding(lengths) & Causal())

    query, lengths = torch.randn(2, 2, 5, 8), torch.tensor([2, 5])
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(query, lengths), function(query, lengths))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, nullcontext])
def test_attention_works_in_every_gradient_mode(context):
    query = torch.randn(1, 2, 5, 8, requires_grad=True)
    with context():
        output = attention(query, query, query, Causal())
    assert output.requires_grad == (context is nullcontext)


def test_our_own_errors_are_not_hidden(monkeypatch):
    def fail(*_, **__):
        raise heedful.ArgumentError("query", expected="a", received="b", remedy="c")

    monkeypatch.setattr("heedful.functional.AttentionProblem", fail)
    query = torch.randn(1, 2, 5, 8)
    with pytest.raises(heedful.ArgumentError, match="expected a"):
        DROP_IN(query, query, query)


def outcome(call: Callable[[], torch.Tensor]) -> torch.Tensor | tuple[type, str]:
    """Return the result of a call, or the type and message of its error."""
    try:
        return call()
    except (RuntimeError, IndexError, heedful.ArgumentError) as error:
        return type(error), str(error)


SIZE = st.sampled_from([1, 2, 4])


@st.composite
def shapes(draw) -> list[list[int]]:
    """Draw shapes of query, key, value and mask that fit together, but for up to two changes."""
    leading = draw(st.lists(SIZE, max_size=3))
    Tq, Tk, D = draw(SIZE), draw(SIZE), draw(SIZE)
    drawn = [[*leading, Tq, D], [*leading, Tk, D], [*leading, Tk, D], [*leading, Tq, Tk]]
    for _ in range(draw(st.integers(0, 2))):
        shape = draw(st.sampled_from(drawn))
        place = draw(st.integers(0, len(shape) - 1))
        change = draw(st.sampled_from(["resize", "insert", "remove"]))
        if change == "insert":
            shape.insert(place, draw(SIZE))
        elif change == "resize":
            shape[place] = draw(SIZE)
        elif len(shape) > 1:
            shape.pop(place)
    return drawn


@given(
    shapes(),
    st.sampled_from([None, torch.float32, torch.float64, torch.bool]),
    st.booleans(),
)
@settings(max_examples=500)
def test_the_drop_in_takes_and_refuses_the_shapes_that_pytorch_does(drawn, mask_dtype, enable_gqa):
    query_shape, key_shape, value_shape, mask_shape = drawn
    query, key, value = (torch.ones(shape) for shape in (query_shape, key_shape, value_shape))
    mask = None if mask_dtype is None else torch.ones(mask_shape, dtype=mask_dtype)
    ours, theirs = (
        outcome(lambda f=f: f(query, key, value, mask, enable_gqa=enable_gqa))
        for f in (DROP_IN, F.scaled_dot_product_attention)
    )
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs)
    else:
        assert ours == theirs
