"""torch.compile takes summaries into its graph, and the operator behaves as PyTorch expects of one."""

import pytest
import torch

from heedful import ArgumentError, Causal, Sinks, Window, attention, summarize
from heedful.kernels import native
from heedful.kernels.native import operators

needs_library = pytest.mark.skipif(
    native.library.missing is not None, reason="the native library is missing"
)


def arguments(**changes):
    """Return the operator's arguments in order."""
    names = {
        "query": torch.randn(1, 4, 6, 8),
        "key": torch.randn(1, 2, 9, 8),
        "lse": None,
        "start": torch.zeros(1, 6, 1, dtype=torch.int32),
        "stop": torch.full((1, 6, 1), 7, dtype=torch.int32),
        "mask": None,
        "bias": torch.randn(1, 1, 6, 9),
        "sinks": torch.randn(4),
        "region_start": torch.zeros(1, 6, 3, dtype=torch.int32),
        "region_stop": torch.ones(1, 6, 3, dtype=torch.int32),
        "scale": 0.3,
        "softcap": 2.0,
        "shift": 3,
        "for_each_query": True,
        "for_each_key": True,
        "top_k": 2,
        "cell": [2, 3, 1, 1],
    }
    assert changes.keys() <= names.keys()
    return tuple((names | changes).values())


@needs_library
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"for_each_query": False, "for_each_key": False, "top_k": 0, "cell": []},
        {"lse": torch.randn(1, 4, 6), "region_start": None, "region_stop": None},
    ],
)
def test_opcheck_accepts_the_operator(changes):
    torch.library.opcheck(operators.attention_summary, arguments(**changes))


@needs_library
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": torch.randn(1, 2, 9, 8).double()}, "key: expected"),
        ({"key": torch.randn(1, 3, 9, 8)}, "key: expected"),
        ({"lse": torch.randn(1, 4, 5)}, "lse: expected"),
        ({"bias": torch.randn(6, 9)}, "bias: expected"),
        ({"sinks": torch.randn(3)}, "sinks: expected"),
        ({"region_stop": None}, "start, stop: expected both"),
        (
            {"region_start": torch.zeros(1, 5, 3, dtype=torch.int32)},
            "start: expected|stop: expected",
        ),
        ({"cell": [2, 3]}, "cell: expected"),
        ({"cell": [0, 3, 0, 0]}, "cell: expected"),
        ({"scale": float("nan")}, "scale: expected"),
    ],
)
def test_the_operator_refuses_what_does_not_fit(changes, message):
    with pytest.raises(ArgumentError, match=message):
        operators.attention_summary(*arguments(**changes))


@needs_library
@pytest.mark.parametrize("changes", [{"top_k": -1}, {"cell": [2, 3, 2, 0]}, {"shift": 2**40}])
def test_the_library_refuses_what_it_cannot_count(changes):
    with pytest.raises((RuntimeError, ArgumentError)):
        operators.attention_summary(*arguments(**changes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_summary_is_part_of_a_compiled_graph(dtype, backend):
    def function(query, key):
        regions = {"sinks": Sinks(1), "recent": Window(3), "span": (1, 4)}
        summary = summarize(query, key, Causal(), top_k=2, pool=3, regions=regions, rows=[0, 8])
        return (
            *(summary.entropy, summary.received_mass, summary.top_keys, summary.pooled_mean),
            *summary.region_mass.values(),
            summary.weights,
        )

    query, key = torch.randn(1, 4, 9, 8, dtype=dtype), torch.randn(1, 2, 9, 8, dtype=dtype)
    compiled = torch.compile(function, fullgraph=True, backend=backend)(query, key)
    for ours, expected in zip(compiled, function(query, key), strict=True):
        torch.testing.assert_close(ours, expected)


def test_the_received_mass_is_part_of_a_compiled_graph():
    def function(query):
        output, lse, mass = attention(query, query, query, Causal(), return_received_mass=True)
        return output + 1, lse, mass

    query = torch.randn(1, 2, 9, 8)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(query)
    for ours, expected in zip(compiled, function(query), strict=True):
        torch.testing.assert_close(ours, expected)
