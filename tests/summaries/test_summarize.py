"""summarize() computes what the dense weights give, natively and in PyTorch; attention() returns the received mass."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful import ArgumentError, Causal, Dense, Documents, Padding, Sinks, Window, summarize
from heedful.kernels import native
from heedful.summaries import chunked
from strategies import calls, masks
from summaries.dense import assert_summary, weights_of

ATOL = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 3e-6, torch.float16: 3e-6}
needs_library = pytest.mark.skipif(
    native.library.missing is not None, reason="the native library is missing"
)


@st.composite
def requests(
    draw, dtype: torch.dtype = torch.float32
) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Draw the arguments of attention, the place of query 0, and the options of a summary."""
    call = draw(calls(dtype=dtype))
    arguments = call.arguments()
    B, Hq, Tq, _ = arguments["query"].shape
    Tk = arguments["key"].shape[2]
    mask = arguments.get("mask")
    shift = Tk - Tq if mask is not None and mask.align == "end" else 0
    edges = st.tuples(st.integers(0, Tk), st.integers(0, Tk)).map(lambda pair: tuple(sorted(pair)))
    region = st.one_of(edges, masks(B, Hq, Tq, Tk, dense=False))
    options: dict[str, Any] = {
        "for_each_query": draw(st.booleans()),
        "for_each_key": draw(st.booleans()),
        "top_k": draw(st.integers(0, Tk + 2)),
        "regions": draw(st.dictionaries(st.sampled_from("abc"), region)),
        "pool": draw(
            st.none() | st.integers(1, 15) | st.tuples(st.integers(1, 15), st.integers(1, 15))
        ),
    }
    if draw(st.booleans()):
        options["rows"] = draw(st.lists(st.integers(0, Tq - 1)))
        options["columns"] = draw(st.none() | edges)
    return arguments, shift, options


@needs_library
@given(requests())
def test_every_statistic_is_that_of_the_dense_weights(request_):
    arguments, shift, options = request_
    assert_summary(arguments, ATOL[torch.float32], shift, **options)


@given(requests(torch.float64))
def test_pytorch_computes_the_same_in_float64(request_):
    arguments, shift, options = request_
    assert_summary(arguments, ATOL[torch.float64], shift, **options)


@settings(max_examples=30)
@given(requests())
def test_pytorch_computes_the_same_a_few_queries_at_a_time(request_):
    arguments, shift, options = request_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "refusal", lambda problem: "not in this test")
        patch.setattr(chunked, "MAX_SCORES", 50)
        assert_summary(arguments, ATOL[torch.float32], shift, **options)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("Tq", "Tk"), [(1, 1), (1, 200), (16, 17), (63, 65), (64, 64), (65, 129), (200, 130)]
)
def test_sizes_around_every_block(dtype, Tq, Tk):
    query, key = torch.randn(2, 6, Tq, 64).to(dtype), torch.randn(2, 2, Tk, 64).to(dtype)
    ids = torch.arange(Tk).expand(2, -1) // 40
    for mask, shift in (
        (None, 0),
        (Causal(align="end"), Tk - Tq),
        ((Sinks(3) | Window(20)) & Causal(align="end"), Tk - Tq),
        (Padding([Tk // 2, Tk]), 0),
        (Dense(torch.rand(2, 1, Tq, Tk) > 0.5), 0),
    ):
        options = {
            "top_k": 5,
            "pool": (3, 7),
            "regions": {
                "first": Sinks(2),
                "late": (Tk // 2, Tk),
                "own": Documents(ids, align="end"),
            },
            "rows": [0, Tq - 1],
            "columns": (0, Tk),
        }
        call = {"query": query, "key": key, "mask": mask, "sinks": torch.randn(6)}
        assert_summary(call, 1e-5, shift, **options)
        lse = heedful.attention(query, key, key, mask, sinks=call["sinks"], return_lse=True).lse
        assert_summary(call, 1e-5, shift, lse=lse, **options)


@needs_library
@pytest.mark.parametrize("isa", native.library.isas() if not native.library.missing else [])
def test_every_instruction_set_computes_the_same(isa):
    before = native.library.isa
    try:
        native.library.use_isa(isa)
        query, key = torch.randn(1, 4, 150, 32).bfloat16(), torch.randn(1, 2, 150, 32).bfloat16()
        for mask in (None, Causal(), Causal() & Window(40)):
            assert_summary({"query": query, "key": key, "mask": mask}, 1e-5, top_k=3, pool=10)
    finally:
        native.library.use_isa(before)


@needs_library
def test_the_bits_are_the_same_on_every_number_of_threads():
    query, key = torch.randn(1, 4, 500, 32), torch.randn(1, 2, 500, 32)
    results = []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        results.append(
            summarize(query, key, Causal(), top_k=4, pool=100, regions={"recent": Window(9)})
        )
    for other in results[1:]:
        for name in (
            *("lse", "mass", "entropy", "largest_weight", "mean_distance", "received_mass"),
            *("top_weights", "top_keys", "pooled_mean", "pooled_max"),
        ):
            assert torch.equal(getattr(results[0], name), getattr(other, name)), name
        assert torch.equal(results[0].region_mass["recent"], other.region_mass["recent"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_that_no_query_sees_do_no_harm(dtype):
    query, key = torch.randn(1, 2, 70, 8, dtype=dtype), torch.randn(1, 2, 90, 8, dtype=dtype)
    key[:, :, 50:] = math.nan
    call = {"query": query, "key": key, "mask": Padding([50])}
    assert_summary(call, 1e-5, top_k=60, pool=9, rows=[1, 69])
    summary = summarize(**call)
    assert (summary.received_mass[..., 50:] == 0).all()


def test_poisoned_memory_is_never_read(monkeypatch):
    """Allocated tensors are full of NaN, as results that nothing writes would be."""
    empty = torch.Tensor.new_empty

    def poisoned(self, *size, **options):
        tensor = empty(self, *size, **options)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor.fill_(-77)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    query, key = torch.randn(2, 2, 70, 8), torch.randn(2, 1, 90, 8)
    mask = Dense(torch.rand(2, 2, 70, 90) > 0.95)  # some queries see no key
    options = {"top_k": 7, "pool": 20, "regions": {"late": (80, 90)}, "rows": range(70)}
    assert_summary({"query": query, "key": key, "mask": mask}, 1e-5, **options)


def test_of_equal_weights_the_earlier_key_comes_first():
    x = torch.zeros(1, 1, 100, 8)
    assert summarize(x, x, top_k=5).top_keys[0, 0, 70].tolist() == [0, 1, 2, 3, 4]
    in_float64 = summarize(x.double(), x.double(), top_k=5)
    assert in_float64.top_keys[0, 0, 70].tolist() == [0, 1, 2, 3, 4]


def test_large_scores_keep_their_weights():
    query, key = 30 * torch.randn(1, 1, 40, 16), 30 * torch.randn(1, 1, 40, 16)
    weights, _ = weights_of({"query": query, "key": key})
    summary = summarize(query, key)
    torch.testing.assert_close(summary.mass.double(), weights.sum(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(summary.received_mass.double(), weights.sum(2), atol=1e-2, rtol=1e-3)


def test_rows_of_the_lowest_scores_keep_their_weights():
    x = torch.zeros(1, 2, 4, 8)
    lowest = torch.full((4, 4), torch.finfo(torch.float32).min)
    summary = summarize(x, x, bias=lowest, rows=[0, 3])
    assert torch.equal(summary.weights, torch.full((1, 2, 2, 4), 0.25))
    with_sinks = summarize(x, x, sinks=torch.zeros(2), rows=range(4))
    torch.testing.assert_close(with_sinks.weights, torch.full((1, 2, 4, 4), 0.2))


def test_there_are_no_gradients():
    query = torch.randn(1, 1, 5, 8, requires_grad=True)
    summary = summarize(query, query, bias=torch.zeros(5, 5, requires_grad=True), rows=[0])
    for tensor in (summary.lse, summary.entropy, summary.received_mass, summary.weights):
        assert not tensor.requires_grad


def test_empty_tensors_have_empty_statistics():
    for B, Tq, Tk in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        for dtype in (torch.float32, torch.float64):
            query, key = (
                torch.randn(B, 2, Tq, 8, dtype=dtype),
                torch.randn(B, 2, Tk, 8, dtype=dtype),
            )
            regions = {"a": (0, 1), "b": Padding(torch.zeros(B, dtype=torch.int64))}
            summary = summarize(query, key, top_k=2, pool=2, regions=regions)
            assert summary.entropy.shape == (B, 2, Tq)
            assert torch.equal(summary.received_mass, torch.zeros(B, 2, Tk, dtype=dtype))
            assert (summary.largest_weight == 0).all() or Tk
            assert (summary.top_keys == -1).all() or Tk


def test_the_repr_is_short_and_has_the_means():
    x = torch.zeros(1, 2, 3, 8)
    summary = summarize(x, x, top_k=1, pool=2, regions={"recent": Window(2)}, rows=[0])
    assert repr(summary) == (
        "Summary(1 x 2 heads, 3 queries, 3 keys: entropy 1.1, largest weight 0.333, mean distance 0.889, "
        "received mass, top 1, mass of 'recent' 0.556, map of 2 x 2 cells, weights 1 x 3)"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lse": torch.zeros(1, 2, 4)}, r"lse: expected torch.float32 \(1, 2, 5\)"),
        ({"lse": torch.zeros(1, 2, 5).double()}, "lse: expected torch.float32"),
        ({"top_k": -1}, "top_k: expected an integer of at least 0; received -1"),
        ({"top_k": 2.0}, "top_k: expected an integer"),
        ({"pool": 0}, "pool: expected a number of cells"),
        ({"pool": (2, 3, 4)}, "pool: expected a number of cells"),
        (
            {"regions": {"odd": Dense(torch.ones(5, 5).bool())}},
            r"regions\['odd'\]: expected a mask with",
        ),
        ({"regions": {"odd": 3}}, r"regions\['odd'\]: expected"),
        ({"regions": {"odd": "ab"}}, r"regions\['odd'\]: expected"),
        ({"rows": ["a"]}, "rows: expected indices"),
        ({"rows": torch.tensor([0, 5])}, "rows: expected indices"),
        ({"rows": [5]}, "rows: expected indices of queries from 0 to 4"),
        ({"rows": torch.ones(2)}, "rows: expected indices"),
        ({"columns": (0, 2)}, "columns: expected .* together with rows"),
        ({"rows": [0], "columns": (3, 9)}, "columns: expected"),
        ({"queries": (3, 6)}, "queries: expected"),
        ({"keys": (-1, 9)}, "keys: expected"),
        ({"mask": "causal"}, "mask: expected"),
        ({"bias": torch.zeros(3, 3)}, "bias: expected"),
        (
            {"queries": (0, 9), "bias": torch.zeros(3, 3)},
            "bias: expected a shape .* not only this part",
        ),
        ({"scale": math.nan}, "scale: expected"),
        ({"softcap": -1.0}, "softcap: expected"),
        ({"sinks": torch.zeros(3)}, "sinks: expected"),
    ],
)
def test_errors_are_raised_at_the_door(options, message):
    x = torch.zeros(1, 2, 5, 8)
    with pytest.raises(ArgumentError, match=message):
        summarize(x, x, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_attention_returns_the_received_mass(dtype):
    query, key = torch.randn(2, 4, 60, 8).to(dtype), torch.randn(2, 2, 60, 8).to(dtype)
    result = heedful.attention(query, key, key, Causal(), return_received_mass=True)
    weights, lse = weights_of({"query": query, "key": key, "mask": Causal()})
    atol = 1e-12 if dtype == torch.float64 else 1e-5 if dtype == torch.float32 else 2e-3
    torch.testing.assert_close(result.received_mass.double(), weights.sum(2), atol=atol, rtol=atol)
    torch.testing.assert_close(result.lse.double(), lse, atol=atol, rtol=atol)
    assert torch.equal(
        result.output, heedful.attention(query, key, key, Causal(), return_lse=True).output
    )


def test_the_received_mass_leaves_gradients_alone():
    query = torch.randn(1, 1, 6, 8, requires_grad=True)
    result = heedful.attention(query, query, query, return_received_mass=True)
    assert not result.received_mass.requires_grad
    (gradient,) = torch.autograd.grad(result.output.sum() + result.lse.sum(), query)
    plain = heedful.attention(query, query, query, return_lse=True)
    (expected,) = torch.autograd.grad(plain.output.sum() + plain.lse.sum(), query)
    assert torch.equal(gradient, expected)


def test_the_received_mass_comes_before_dropout_and_under_autocast():
    query = torch.randn(1, 1, 6, 8)
    expected = heedful.attention(query, query, query, return_received_mass=True).received_mass
    dropped = heedful.attention(query, query, query, dropout_p=0.5, return_received_mass=True)
    torch.testing.assert_close(dropped.received_mass, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = heedful.attention(query, query, query, return_received_mass=True)
    assert cast.output.dtype == torch.bfloat16
    torch.testing.assert_close(cast.received_mass, expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("kernel", ["auto", "native", "torch_sdpa", "online", "reference"])
def test_every_kernel_gives_the_received_mass(kernel):
    query, key = torch.randn(1, 4, 30, 8), torch.randn(1, 2, 30, 8)
    result = heedful.attention(query, key, key, Causal(), kernel=kernel, return_received_mass=True)
    weights, lse = weights_of({"query": query, "key": key, "mask": Causal()})
    torch.testing.assert_close(result.received_mass.double(), weights.sum(2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(result.lse.double(), lse, atol=1e-5, rtol=1e-5)
    expected = heedful.attention(query, key, key, Causal(), kernel=kernel)
    torch.testing.assert_close(result.output, expected)


def test_a_kernel_without_a_log_sum_exp_refuses_gradients_with_the_received_mass():
    query = torch.randn(1, 1, 6, 8, requires_grad=True)
    with pytest.raises(heedful.KernelError, match="does not return the log-sum-exp"):
        heedful.attention(query, query, query, kernel="torch_sdpa", return_received_mass=True)


MEMORY = """
import resource, torch
from heedful import Causal, summarize
T = {T}
query, key = (torch.randn(1, 8, T, 64).bfloat16() for _ in range(2))
small = query[:, :, :128]
summarize(small, small, Causal(), top_k=8, pool=64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
summary = summarize(query, key, Causal(), top_k=8, pool=512)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert summary.pooled_mean.shape == (1, 8, 512, 512)
print(1024 * (after - before))
"""


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts other units elsewhere")
def test_nothing_of_the_size_of_the_weights_is_allocated():
    """At 8192 tokens the weights of 8 heads take 2 GiB, and one head's 256 MiB."""
    printed = subprocess.run(
        [sys.executable, "-c", MEMORY.format(T=8192)], capture_output=True, text=True, check=True
    ).stdout
    assert int(printed) < 100 * 2**20
