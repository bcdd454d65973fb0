"""An attention that a single call computes is recorded as its steps, and nothing about the run changes."""

import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import heedful
from heedful import Causal, Padding, Sinks, Window, attention, record
from heedful.nn import MultiHeadAttention
from heedful.observation import Summary

B, H, T, D = 2, 4, 6, 8


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def expected_weights(query, key, *, shown=None, bias=None, scale=None, softcap=None, sinks=None):
    """Return the weights as the paper writes them, in float64."""
    query, key = query.double(), key.double()
    if query.dim() > 2 and query.shape[-3] != key.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    if shown is not None:
        scores = scores.masked_fill(~shown, -math.inf)
    if sinks is None:
        return scores.softmax(-1)
    columns = sinks.double().view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, columns], -1).softmax(-1)[..., :-1]


TRIANGLE = torch.ones(T, T, dtype=torch.bool).tril()
BAND = TRIANGLE & (torch.arange(T)[:, None] - torch.arange(T) < 2)
PADDED = TRIANGLE & (torch.arange(T) < torch.tensor([6, 4])[:, None])[:, None, None]
RANDOM = torch.rand(B, H, T, T, generator=torch.Generator().manual_seed(0)) > 0.3
RANDOM[..., 0] = True

OWN = {
    "plain": ({}, {}),
    "causal": ({"mask": Causal()}, {"shown": TRIANGLE}),
    "sinks and window": ({"mask": Sinks(1) | Window(2)}, {"shown": BAND | (torch.arange(T) == 0)}),
    "padding": ({"mask": Causal() & Padding(torch.tensor([6, 4]))}, {"shown": PADDED}),
    "Boolean": ({"mask": RANDOM}, {"shown": RANDOM}),
    "scale": ({"scale": 0.2}, {"scale": 0.2}),
    "soft-cap": ({"softcap": 2.0}, {"softcap": 2.0}),
    "bias": ({"bias": draw(H, T, T)}, {"bias": draw(H, T, T)}),
    "sink logits": ({"sinks": draw(H)}, {"sinks": draw(H)}),
    "lse": ({"return_lse": True, "mask": Causal()}, {"shown": TRIANGLE}),
    "mass": ({"return_received_mass": True}, {}),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_attention_opens_as_scores_weights_and_context(name, key_heads, dtype):
    options, meaning = OWN[name]
    query = draw(B, H, T, D, dtype=dtype)
    key, value = draw(B, key_heads, T, D, dtype=dtype), draw(B, key_heads, T, 5, dtype=dtype)
    if "bias" in options:
        options = {"bias": options["bias"].to(dtype)}
        meaning = options

    def call():
        result = attention(query, key, value, **options)
        context = result if isinstance(result, torch.Tensor) else result.output
        return context * 1

    trace = record(call)
    torch.testing.assert_close(
        trace["weights"].value.double(), expected_weights(query, key, **meaning), atol=1e-5, rtol=0
    )
    context = trace["weights"].value.double() @ value.double().repeat_interleave(H // key_heads, 1)
    torch.testing.assert_close(
        trace["context"].value.double(),
        context,
        atol=2e-2 if dtype == torch.bfloat16 else 1e-5,
        rtol=0,
    )
    assert not any(step.function.startswith("heedful") for step in trace)
    beside = [step.name for step in trace if step.beside]
    assert "scores" in beside
    assert ("mask" in beside) == ("mask" in options)
    assert ("capped_scores" in beside) == ("softcap" in options)
    assert not trace["context"].beside
    assert not any(step.unused for step in trace if step.beside)


SDPA = {
    "plain": ({}, {}),
    "causal": ({"is_causal": True}, {"shown": TRIANGLE}),
    "Boolean mask": ({"attn_mask": TRIANGLE}, {"shown": TRIANGLE}),
    "float mask": ({"attn_mask": draw(T, T)}, {"bias": draw(T, T)}),
    "scale": ({"scale": 1.5}, {"scale": 1.5}),
}


@pytest.mark.parametrize("name", SDPA)
@pytest.mark.parametrize("leading", [(), (H,), (B, H), (2, B, H)])
@pytest.mark.parametrize(
    "function", [F.scaled_dot_product_attention, heedful.scaled_dot_product_attention]
)
def test_scaled_dot_product_attention_opens_in_any_number_of_dimensions(function, leading, name):
    options, meaning = SDPA[name]
    query, key, value = (draw(*leading, T, D) + i for i in range(3))
    trace = record(lambda: function(query, key, value, **options))
    weights = expected_weights(query, key, **meaning)
    assert trace["weights"].shape == tuple(weights.shape)
    torch.testing.assert_close(trace["weights"].value.double(), weights, atol=1e-5, rtol=0)
    assert trace["context"].operation == "scaled_dot_product_attention"


def test_positional_masks_are_read_as_by_pytorch():
    query = draw(B, H, T, D)
    trace = record(F.scaled_dot_product_attention, query, query, query, TRIANGLE, 0.0)
    torch.testing.assert_close(
        trace["weights"].value.double(), expected_weights(query, query, shown=TRIANGLE)
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: attention(x, x, x, Causal(), dropout_p=0.4),
        lambda x: attention(x, x, x, dropout_p=0.4, kernel="torch_sdpa"),
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.4),
    ],
)
def test_dropout_is_that_of_the_run_and_the_random_state_stays(call):
    x = draw(B, H, T, D)
    torch.manual_seed(1)
    expected, after = call(x), torch.rand(3)
    torch.manual_seed(1)
    trace = record(call, x)
    assert torch.equal(trace.result, expected)
    assert torch.equal(torch.rand(3), after)
    dropped = trace["dropped_weights"].value
    assert 0.1 < (dropped == 0).float().mean() < 0.9
    torch.testing.assert_close(dropped @ x, expected, atol=1e-5, rtol=1e-5)
    assert largest_difference(trace) < 1e-5


def largest_difference(trace):
    found = re.search(r"at most (\S+)\.", trace["context"].remark)
    return float(found[1]) if found else 0.0


def test_the_difference_is_told():
    x = draw(1, 1, T, D)

    class Doubled(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    trace = record(Doubled(), x.bfloat16())
    weights = expected_weights(x.bfloat16(), x.bfloat16()).float()
    difference = (weights @ x.bfloat16().float() - trace.result.float()).abs().max().item()
    assert largest_difference(trace) == pytest.approx(difference, rel=0.1)
    assert difference > 1e-4
    assert trace["context"].remark in str(trace)


class Largest(TorchDispatchMode):
    """Notes the number of entries of the largest tensor that an operation makes."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not func.is_view:
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("mask", [None, Causal(), Sinks(4) | Window(100)])
def test_of_a_long_context_only_a_sample_of_rows_is_computed(mask):
    long = 3000
    query = draw(1, 8, long, 4)

    def call(query):
        return attention(query, query, query, mask)

    with Largest() as mode:
        trace = record(call, query)
    assert mode.largest < 8 * long * long / 8
    weights = trace["weights"].value
    assert isinstance(weights, Summary)
    assert weights.shape == (1, 8, long, long)
    assert weights.of_sample
    rows = torch.arange(0, long, weights.strides[2])
    shown = None if mask is None else mask.dense(long)[0, 0, rows]
    expected = expected_weights(query[:, :: weights.strides[1], rows], query[:, ::2], shown=shown)
    torch.testing.assert_close(
        weights.sample.double(), expected[..., :: weights.strides[3]], atol=1e-6, rtol=0
    )
    assert "16 of 3000 queries" in trace["context"].remark
    assert largest_difference(trace) < 1e-5
    assert "sampled rows" in str(weights)


def test_a_smaller_budget_of_memory_is_kept():
    query = draw(1, 2, 64, 4)
    trace = record(lambda: attention(query, query, query), memory=50_000)
    assert isinstance(trace["weights"].value, Summary)
    assert isinstance(record(lambda: attention(query, query, query))["weights"].value, torch.Tensor)


def test_it_can_be_left_closed():
    query = draw(1, 2, T, D)
    trace = record(attention, query, query, query, open_attention=False)
    assert "attention_forward" in [step.operation for step in trace]
    assert not trace.remarks


def test_positions_with_which_a_mask_computes_are_no_steps_unless_it_holds_a_tensor():
    query = draw(2, 2, T, D)

    def attend(query, mask):
        return attention(query, query, query, mask=mask, kernel="reference")

    def padded(query, lengths):
        return attend(query, Padding(lengths))

    causal = record(attend, query, Causal(), open_attention=False)
    assert not {"arange", "clamp", "broadcast_tensors"} & {step.operation for step in causal}
    steps = record(padded, query, torch.tensor([3, T]), open_attention=False)
    assert "lengths" in {source.name for step in steps for source in step.inputs}


def test_errors_are_those_of_the_call():
    query = draw(1, 2, T, D)
    with pytest.raises(heedful.ArgumentError, match="scale"):
        record(attention, query, query, query, scale=math.nan)
    with pytest.raises(RuntimeError):
        record(F.scaled_dot_product_attention, query, query[..., :3], query)


def test_what_has_no_entries_stays_closed():
    query = draw(1, 2, T, D)
    meta = query.to("meta")
    assert len(record(F.scaled_dot_product_attention, meta, meta, meta)) == 1
    mapped = record(torch.vmap(lambda x: F.scaled_dot_product_attention(x, x, x)), query)
    assert not any(step.beside for step in mapped)


def test_autocast_and_gradients_stay_as_they_are():
    query = draw(1, 2, T, D).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        expected = attention(query, query, query)
        trace = record(attention, query, query, query)
    assert torch.equal(trace.result, expected)
    assert trace["scores"].dtype == torch.float32
    trace.result.float().sum().backward()
    recorded, query.grad = query.grad, None
    expected.float().sum().backward()
    assert torch.equal(recorded, query.grad)


def test_a_query_that_sees_nothing():
    shown = TRIANGLE.clone()
    shown[2] = False
    query = draw(1, 2, T, D)
    trace = record(attention, query, query, query, shown)
    assert (trace["weights"].value[:, :, 2] == 0).all()
    assert largest_difference(trace) < 1e-5


def test_the_module_opens_under_its_own_names():
    trace = record(MultiHeadAttention(8, 4, num_kv_heads=2), draw(1, T, 8))
    assert set(trace.names) >= {
        "queries_by_head",
        "scores",
        "masked_scores",
        "weights",
        "context_by_head",
    }
    assert {step.file.rsplit("/", 1)[1] for step in trace} == {"multi_head.py"}
    assert trace["context"].name == "context_by_head"
    assert trace["weights"].source.startswith("context_by_head = attend(")


# --- names and roles ---------------------------------------------------------------------------------


class Written(nn.Module):
    """Attention under other names than the usual ones."""

    def forward(self, x):
        affinity = x @ x.mT / x.shape[-1] ** 0.5
        hidden = affinity.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        attn = torch.softmax(hidden, dim=-1)
        kept = F.dropout(attn, 0.5)
        mixed = kept @ x
        return mixed + 1


def test_steps_are_found_by_their_role_if_no_variable_has_the_name():
    trace = record(Written(), draw(T, 8))
    for role, name in {
        "scores": "affinity·matmul",
        "scaled_scores": "affinity",
        "masked_scores": "hidden",
        "weights": "attn",
        "dropped_weights": "kept",
        "context": "mixed",
    }.items():
        assert trace[role].name == name
        assert role in trace
    assert trace["attn"] is trace["weights"]
    assert trace["weights"].role == "weights"


def test_a_name_comes_before_a_role():
    def call(x):
        weights = torch.ones(8)
        attn = (x @ x.mT).softmax(-1)
        return attn @ (x * weights)

    trace = record(call, draw(T, 8))
    assert trace["weights"].operation == "ones"
    assert trace["attn"].role == "weights"


def test_the_path_of_a_module_chooses_one_of_several_steps():
    trace = record(nn.Sequential(Written(), Written()), draw(T, 8))
    assert trace["0.attn"].index < trace["1.attn"].index == trace["attn"].index
    assert trace["0.weights"] is trace["0.attn"]
    assert len(trace.all("attn")) == len(trace.all("weights")) == 2


def test_what_is_not_attention_has_no_role():
    linear = nn.Linear(8, 3)
    trace = record(lambda x: linear(x).softmax(-1), draw(T, 8))
    assert not any(step.role for step in trace)
    gate = nn.Parameter(draw(8, 3))
    assert not any(step.role for step in record(lambda x: (x @ gate).softmax(-1), draw(T, 8)))


class Routed(nn.Module):
    """A softmax over learned places: its product is one with parameters, and so no attention of tokens."""

    def __init__(self):
        super().__init__()
        self.gate, self.table = nn.Parameter(draw(8, 3)), nn.Parameter(draw(3, 8))

    def forward(self, x):
        return (x @ self.gate).softmax(-1) @ self.table


def test_a_product_with_parameters_makes_no_scores():
    assert not any(step.role for step in record(Routed(), draw(T, 8)))


def test_an_unknown_name_lists_similar_names_and_roles():
    trace = record(Written(), draw(T, 8))
    with pytest.raises(KeyError, match="weights"):
        trace["weight"]
    with pytest.raises(KeyError, match="hidden"):
        trace["hiden"]
