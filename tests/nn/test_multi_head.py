"""Tests of `heedful.nn.MultiHeadAttention` against a reference in plain torch."""

import copy

import pytest
import torch

from heedful import Band, Causal, Dense, Documents, Padding, Prefix, Sinks, Window
from heedful.errors import ArgumentError
from heedful.nn import KVCache, MultiHeadAttention, RotaryEmbedding
from heedful.observation import record
from nn.plain import multi_head

B, T, C = 2, 7, 24


@pytest.fixture(autouse=True)
def one_thread(known_state):
    """Use one thread: products this small gain nothing from a second one, and wait for it on a busy machine."""
    torch.set_num_threads(1)


def causal(T=T):
    return torch.ones(T, T, dtype=torch.bool).tril()


def window(size, T=T):
    return causal(T) & ~causal(T).tril(-size)


SELF = {
    "plain": ({}, causal()),
    "grouped": ({"num_kv_heads": 2}, causal()),
    "one key head": ({"num_kv_heads": 1}, causal()),
    "head size of its own": ({"head_dim": 10}, causal()),
    "biases": ({"bias": True}, causal()),
    "soft-cap": ({"softcap": 0.5}, causal()),
    "window": ({"window": 3}, window(3)),
    "both ways": ({"causal": False}, None),
    "rotary": ({"rotary": RotaryEmbedding(6)}, causal()),
    "all": (
        {
            "num_kv_heads": 2,
            "head_dim": 8,
            "bias": True,
            "softcap": 2.0,
            "window": 2,
            "rotary": RotaryEmbedding(8, base=100.0, layout="interleaved"),
        },
        window(2),
    ),
}


@pytest.mark.parametrize("name", SELF)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_self_attention(name, dtype):
    options, shown = SELF[name]
    module, x = MultiHeadAttention(C, 4, **options).to(dtype), torch.randn(B, T, C, dtype=dtype)
    assert_matches_reference(module, x, shown=shown)


def assert_matches_reference(module, x, context=None, *, shown, **options):
    """Compare the outputs and the gradients of parameters and inputs with the reference."""
    inputs = [x.requires_grad_()] + ([] if context is None else [context.requires_grad_()])
    computed = []
    for output in (
        module(*inputs, **options),
        multi_head(module, *inputs, shown=shown, positions=options.get("positions")),
    ):
        weighted = (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum()
        computed.append([output, *torch.autograd.grad(weighted, [*module.parameters(), *inputs])])
    torch.testing.assert_close(*computed)


def test_cross_attention():
    """The context has other sizes and another number of tokens. Only the caller's mask applies."""
    module = MultiHeadAttention(C, 4, num_kv_heads=2, d_context=10, bias=True)
    x, context = torch.randn(B, T, C), torch.randn(B, 5, 10)
    assert_matches_reference(module, x, context, shown=None)
    shown = torch.arange(5) < torch.tensor([3, 5])[:, None, None]
    assert_matches_reference(module, x, context, shown=shown, mask=Padding(torch.tensor([3, 5])))


RAGGED = torch.tensor([4, 7])
FRESH = (torch.arange(T) >= T - RAGGED[:, None])[:, None]  # (B, 1, T): not left padding


@pytest.mark.parametrize(
    ("options", "mask", "shown"),
    [
        ({}, Padding(RAGGED, side="left"), causal() & FRESH),
        ({"window": 3}, Padding(RAGGED, side="left"), window(3) & FRESH),
        ({"window": 4}, Window(2), window(2)),
        ({}, Band(2, 2), window(3)),
        ({}, Documents(torch.arange(T) // 3), causal() & torch.block_diag(*[torch.ones(3, 3)] * 3)[:T, :T].bool()),
        ({}, Sinks(1) | Window(2), window(2) | (torch.arange(T) == 0)),
        ({"causal": False}, Prefix(4), causal() | (torch.arange(T) < 4)),
        ({"causal": False}, Padding(RAGGED), torch.arange(T) < RAGGED[:, None, None]),
        ({"window": 5}, Causal(), window(5)),
    ],
    ids=str,
)  # fmt: skip
def test_the_calls_mask_and_the_modules_own_are_combined(options, mask, shown):
    module, x = MultiHeadAttention(C, 4, **options), torch.randn(B, T, C)
    shown = shown.expand(B, T, T)
    seen = shown.any(-1)  # a padding token on the left sees nothing
    output = module(x, mask=mask)
    for row in range(B):
        kept = seen[row]
        expected = multi_head(
            module,
            x[row : row + 1, kept],
            shown=shown[row][kept][:, kept][None],
        )
        torch.testing.assert_close(output[row : row + 1, kept], expected)
    assert not output[~seen].any()


@pytest.mark.parametrize("shape", [(T, T), (B, 1, T, T), (1, 4, T, T)], ids=str)
def test_a_boolean_tensor_is_a_mask(shape):
    module, x = MultiHeadAttention(C, 4, window=4), torch.randn(B, T, C)
    tensor = (torch.rand(shape) > 0.5) | torch.eye(T, dtype=torch.bool)
    assert torch.equal(module(x, mask=tensor), module(x, mask=Dense(tensor)))
    if shape != (1, 4, T, T):
        shown = tensor.view(-1, T, T) & window(4)
        torch.testing.assert_close(module(x, mask=tensor), multi_head(module, x, shown=shown))
    else:
        assert not torch.allclose(module(x, mask=tensor), module(x, mask=tensor[:, :1]))


def test_positions_are_passed_to_the_rotary_embedding():
    module = MultiHeadAttention(C, 4, rotary=RotaryEmbedding(6))
    x, positions = torch.randn(B, T, C), torch.arange(B * T).view(B, T) ** 2
    assert_matches_reference(module, x, shown=causal(), positions=positions)
    torch.testing.assert_close(module(x, positions=torch.arange(9, 9 + T)), module(x))


@pytest.mark.parametrize("options", [{}, {"rotary": RotaryEmbedding(6), "num_kv_heads": 2}])
def test_without_a_batch(options):
    module, x = MultiHeadAttention(C, 4, **options), torch.randn(T, C)
    torch.testing.assert_close(module(x), module(x[None])[0])
    Hkv = module.num_kv_heads
    output, cache = module(x, cache=KVCache.empty(1, Hkv, T, 6))
    torch.testing.assert_close(output, module(x))
    assert cache.length == T
    crossing = MultiHeadAttention(C, 4, d_context=5)
    context = torch.randn(3, 5)
    torch.testing.assert_close(crossing(x, context), crossing(x[None], context[None])[0])


# --- with a cache ---


def poisoned(module, capacity, batch=B, dtype=torch.float32):
    """Return a cache whose unused slots contain NaN."""
    cache = KVCache.empty(batch, module.num_kv_heads, capacity, module.head_dim, dtype=dtype)
    cache.key.fill_(torch.nan)
    cache.value.fill_(torch.nan)
    return cache


@pytest.mark.parametrize("name", [name for name in SELF if name != "both ways"])
@pytest.mark.parametrize("steps", [(7,), (1,) * 7, (3, 1, 1, 2), (1, 6)], ids=str)
def test_output_with_a_cache_equals_that_of_all_tokens_at_once(name, steps):
    module, x = MultiHeadAttention(C, 4, **SELF[name][0]).eval(), torch.randn(B, T, C)
    cache, outputs = poisoned(module, T + 3), []
    with torch.no_grad():
        for piece in x.split(steps, dim=1):
            output, cache = module(piece, cache=cache)
            outputs.append(output)
        torch.testing.assert_close(torch.cat(outputs, dim=1), module(x))
    assert cache.length == T
    assert cache.key[:, :, T:].isnan().all()


def test_gradients_pass_through_a_cache():
    module, x = MultiHeadAttention(C, 4, rotary=RotaryEmbedding(6)), torch.randn(B, T, C)
    cache, outputs = poisoned(module, T), []
    for piece in x.split((3, 1, 3), dim=1):
        output, cache = module(piece, cache=cache)
        outputs.append(output)
    computed = [
        torch.autograd.grad(output.square().sum(), list(module.parameters()))
        for output in (torch.cat(outputs, dim=1), module(x))
    ]
    torch.testing.assert_close(*computed)


def test_left_padded_prompts_are_continued_like_single_ones():
    module = MultiHeadAttention(C, 4, num_kv_heads=2, rotary=RotaryEmbedding(6), window=5).eval()
    lengths, x = torch.tensor([2, 5]), torch.randn(B, 8, C)
    cache = poisoned(module, 8)
    x[0, :3] = torch.nan  # the padding
    outputs = []
    with torch.no_grad():
        for start, stop in ((0, 5), (5, 6), (6, 7), (7, 8)):
            positions = torch.arange(start, stop) - (5 - lengths)[:, None]
            mask = Padding(lengths + stop - 5, side="left")
            output, cache = module(
                x[:, start:stop], mask=mask, positions=positions.clamp(min=0), cache=cache
            )
            outputs.append(output)
        together = torch.cat(outputs, dim=1)
        torch.testing.assert_close(together[0, 3:], module(x[0, 3:]))
        torch.testing.assert_close(together[1], module(x[1]))


def test_masks_include_the_keys_in_the_cache():
    """A mask restricts a single new token, which the module's own causality would let see every key."""
    module, x = MultiHeadAttention(C, 4).eval(), torch.randn(1, T, C)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    tensor = torch.rand(1, 1, T, T) > 0.5
    tensor[..., 0] = True
    pairs = [
        (Documents(ids), Documents(ids)),
        (Window(2), Window(2)),
        (tensor, tensor[..., -1:, :]),
    ]
    for whole, newest in pairs:
        with torch.no_grad():
            _, cache = module(x[:, :-1], cache=poisoned(module, T, batch=1))
            output, _ = module(x[:, -1:], mask=newest, cache=cache)
            torch.testing.assert_close(output, module(x, mask=whole)[:, -1:])


# --- dropout, autocast and kernels ---


def test_dropout_applies_only_in_training():
    module, x = MultiHeadAttention(C, 4, dropout=0.5), torch.randn(B, T, C)
    assert not torch.equal(module(x), module(x))
    torch.manual_seed(3)
    first = module(x)
    torch.manual_seed(3)
    assert torch.equal(module(x), first)
    without = MultiHeadAttention(C, 4)
    without.load_state_dict(module.state_dict())
    assert torch.equal(module.eval()(x), without(x))


def test_dropout_keeps_the_mean():
    module, x = MultiHeadAttention(C, 4, dropout=0.3), torch.randn(1, T, C)
    with torch.no_grad():
        mean = module(x.expand(4000, -1, -1)).mean(0)
        torch.testing.assert_close(mean, module.eval()(x)[0], atol=0.02, rtol=0)


def test_autocast_requires_a_cache_of_its_dtype():
    module = MultiHeadAttention(C, 4, num_kv_heads=2, rotary=RotaryEmbedding(6), bias=True).eval()
    x, outputs = torch.randn(B, T, C), []
    cache = poisoned(module, T, dtype=torch.bfloat16)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for piece in x.split((4, 1, 2), dim=1):
            output, cache = module(piece, cache=cache)
            outputs.append(output)
    together = torch.cat(outputs, dim=1)
    assert together.dtype == torch.bfloat16
    torch.testing.assert_close(together.float(), module(x), atol=0.03, rtol=0.03)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ArgumentError, match="Under autocast, the dtype is autocast's"),
    ):
        module(x, cache=poisoned(module, T))


def test_the_requested_kernel_runs():
    x = torch.randn(B, T, C)
    for kernel in ("reference", "torch_sdpa"):
        module = MultiHeadAttention(C, 4, kernel=kernel)
        torch.testing.assert_close(module(x), multi_head(module, x, shown=causal()))
    with pytest.raises(ArgumentError, match="kernel: expected 'auto'"):
        MultiHeadAttention(C, 4, kernel="fastest")(x)


# --- the interface for other code ---


def test_the_state_dict():
    options = {"window": 3, "dropout": 0.1, "rotary": RotaryEmbedding(2)}
    module = MultiHeadAttention(8, 4, num_kv_heads=2, bias=True, **options)
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    assert shapes == {
        "W_query.weight": (8, 8),
        "W_query.bias": (8,),
        "W_key.weight": (4, 8),
        "W_key.bias": (4,),
        "W_value.weight": (4, 8),
        "W_value.bias": (4,),
        "out_proj.weight": (8, 8),
        "out_proj.bias": (8,),
    }
    assert list(MultiHeadAttention(8, 4, d_context=5).state_dict()) == [
        "W_query.weight",
        "W_key.weight",
        "W_value.weight",
        "out_proj.weight",
    ]


def test_a_copy_computes_the_same():
    module, x = MultiHeadAttention(C, 4, window=3, rotary=RotaryEmbedding(6)), torch.randn(B, T, C)
    output = module(x)
    assert torch.equal(copy.deepcopy(module)(x), output)
    assert "num_heads=4, num_kv_heads=4, head_dim=6, causal=True, window=3" in repr(module)


def test_a_recording_names_the_steps():
    module, x = MultiHeadAttention(C, 4, rotary=RotaryEmbedding(6)), torch.randn(B, T, C)
    trace = record(module, x)
    names = [name for name in trace.names if "·" not in name]
    steps = ["queries", "keys", "values", "queries_by_head", "keys_by_head", "values_by_head"]
    turned = ["positions", "frequencies", "angles", "cos", "sin", "partner", "rotated"]
    wanted = [*steps, *turned, "contexts"]
    assert [name for name in names if name in wanted] == wanted
    *_, last = trace
    assert last.name == "output"
    assert torch.equal(last.value, module(x))
    assert {step.name for step in trace if step.unused} <= {"lse"}  # which only some kernels return


# --- invalid arguments ---


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"num_heads": 5}, "d_model: expected a multiple of num_heads=5"),
        ({"num_heads": 0}, "num_heads: expected a whole number"),
        ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of num_heads=4"),
        ({"num_kv_heads": 0}, "num_kv_heads: expected a whole number"),
        ({"d_context": 0}, "d_context: expected a whole number"),
        ({"dropout": 1.5}, "dropout: expected a probability"),
        ({"rotary": RotaryEmbedding(8)}, r"rotary: expected RotaryEmbedding\(6\)"),
        ({"window": 0}, "window: expected a whole number"),
        ({"window": 3, "causal": False}, "window: expected None in a module that is not causal"),
        ({"window": 3, "d_context": 8}, "window: expected None with d_context"),
        ({"rotary": RotaryEmbedding(6), "d_context": 8}, "rotary: expected None with d_context"),
    ],
)
def test_invalid_settings_of_the_module_are_refused(arguments, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        MultiHeadAttention(**{"d_model": C, "num_heads": 4} | arguments)


x, context = torch.randn(B, T, C), torch.randn(B, 5, 8)


@pytest.mark.parametrize(
    ("d_context", "inputs", "options", "complaint"),
    [
        (None, [x[..., 1:]], {}, r"x: expected shape \(B, T, 24\) or \(T, 24\)"),
        (None, [x[None]], {}, "x: expected shape"),
        (None, [x, context], {}, "context: expected None, because this module is self-attention"),
        (8, [x], {}, r"context: expected shape \(B, Tk, 8\)"),
        (8, [x, x], {}, r"context: expected shape \(B, T, 8\)"),
        (8, [x, context[:1]], {}, r"context: expected batch dimensions \(2,\)"),
        (8, [x, context[0]], {}, "context: expected batch dimensions"),
        (8, [x, context], {"cache": KVCache.empty(B, 4, 9, 6)}, "cache: expected None"),
        (None, [x], {"mask": x}, "mask: expected a mask .* received torch.float32"),
        (None, [x], {"mask": "causal"}, "received str"),
        (None, [x], {"mask": Causal(align="start")}, "one alignment for both masks"),
        (None, [x], {"cache": KVCache.empty(B, 4, 6, 6)}, "at most 6 tokens"),
        (None, [x], {"cache": KVCache.empty(1, 4, 9, 6)}, r"key: expected .*\(B=1, Hkv=4, T, D=6\)"),
    ],
)  # fmt: skip
def test_invalid_calls_of_the_module_are_refused(d_context, inputs, options, complaint):
    module = MultiHeadAttention(C, 4, d_context=d_context)
    with pytest.raises(ArgumentError, match=complaint):
        module(*inputs, **options)
