"""Objects that users meet print in a line, without the entries of tensors."""

import pytest
import torch

from heedful import (
    Causal,
    Padding,
    Window,
    accelerate,
    attention,
    attention_of,
    explain,
    record,
    summarize,
)
from heedful.nn import KVCache, MultiHeadAttention
from heedful.parallel import balanced_order
from heedful.problem import AttentionProblem

X = torch.randn(2, 1, 3, 4)
MODULE = MultiHeadAttention(4, 1)

PRINTED = {
    "intervals": (lambda: Window(2).intervals(3), "Intervals(start and stop: 1 × 3 × 1, 3 keys)"),
    "problem": (
        lambda: AttentionProblem(X, X, X, Causal()),
        "AttentionProblem(query 2 × 1 × 3 × 4, key 2 × 1 × 3 × 4, value 2 × 1 × 3 × 4, float32, mask=Causal())",
    ),
    "result": (
        lambda: attention(X, X, X, return_lse=True),
        "AttentionResult(output: 2 × 1 × 3 × 4 float32, lse: 2 × 1 × 3 float32)",
    ),
    "order": (lambda: balanced_order(Causal(), 64, 4), "TokenOrder(64 tokens on 4 ranks, 16 on each)"),
    "uneven order": (
        lambda: balanced_order(Padding(9), 10, 4), "TokenOrder(10 tokens on 4 ranks, 2 to 3 on each)",
    ),
    "summaries": (
        lambda: attention_of(MODULE, X[0]), "AttentionOfModel(output: Tensor, 1 layer: 'MultiHeadAttention')",
    ),
}  # fmt: skip
OTHERS = {
    "plan": lambda: explain(X, X, X, Causal()),
    "trace": lambda: record(MODULE, X[0]),
    "summary": lambda: summarize(X, X),
    "cache": lambda: KVCache.empty(1, 4, 8, 10),
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_object_prints_its_sizes(name):
    make, text = PRINTED[name]
    assert repr(make()) == text


@pytest.mark.parametrize("name", OTHERS)
def test_an_object_prints_in_one_line(name):
    printed = repr(OTHERS[name]())
    assert "\n" not in printed
    assert "tensor(" not in printed
    assert " object at 0x" not in printed
    assert len(printed) < 300


def test_an_acceleration_says_whether_it_is_active():
    with accelerate() as acceleration:
        assert repr(acceleration) == "Acceleration(active; report() has its calls)"
    assert repr(acceleration) == "Acceleration(removed; report() has its calls)"
