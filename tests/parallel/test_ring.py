"""Ring attention on simulated ranks: results and gradients of one process, and what is sent for them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_cases import (
    assert_equal,
    bytes_sent,
    in_one_process,
    make_call,
    on_ranks,
    self_attention,
)

from heedful import attention
from heedful.errors import ArgumentError, KernelError
from heedful.masks import Causal, Documents, Padding, Sinks, Window
from heedful.metering import _Meter
from heedful.parallel import (
    balanced_order,
    contiguous_order,
    count_traffic,
    ring_attention,
    shard,
    simulate,
    unshard,
)
from heedful.parallel import part as part_module
from heedful.parallel import travel as travel_module

IDS = torch.tensor([[0] * 7 + [1] * 12 + [2] * 6, [0] * 20 + [5] * 5])


@settings(max_examples=60)
@given(self_attention(), st.sampled_from([1, 2, 3, 4, 8]))
def test_float64_results_and_gradients_are_those_of_one_process(call, ranks):
    assert_equal(on_ranks(call, ring_attention, ranks), in_one_process(call), atol=1e-10)


@settings(max_examples=30)
@given(self_attention(), st.sampled_from([2, 3, 8]))
def test_float32_results_and_gradients_are_those_of_one_process(call, ranks):
    single = call.to(torch.float32)
    expected = {name: x.float() for name, x in in_one_process(call).items()}
    assert_equal(on_ranks(single, ring_attention, ranks), expected, atol=1e-5)


@pytest.mark.parametrize("mask", [None, Causal(), Causal() & (Sinks(3) | Window(40))])
def test_the_error_of_float32_does_not_grow_with_the_ranks(mask):
    call = make_call(1, 4, 2, 300, 16, 16, mask)
    exact = in_one_process(call)

    def error(found):
        return {
            name: ((found[name].double() - exact[name]).norm() / exact[name].norm()).item()
            for name in exact
        }

    one = error(in_one_process(call.to(torch.float32)))
    for ranks in (1, 2, 4, 8, 16):
        many = error(on_ranks(call.to(torch.float32), ring_attention, ranks))
        for name in exact:
            assert many[name] <= 1.5 * one[name] + 3e-8, (name, ranks, many[name], one[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_dtypes_are_rounded_once(dtype):
    call = make_call(1, 4, 2, 120, 16, 16, Causal()).to(dtype)
    expected = {name: x.to(dtype) for name, x in in_one_process(call.to(torch.float64)).items()}
    found = on_ranks(call, ring_attention, 8)
    for name, tensor in expected.items():
        assert found[name].dtype == (torch.float32 if name == "lse" else dtype)
        off = (found[name].double() - tensor.double()).abs() > 1e-5 + torch.finfo(
            dtype
        ).eps * tensor.abs()
        assert not off.any(), name


def test_messages_of_any_size_give_the_same(monkeypatch):
    call = make_call(2, 4, 2, 50, 8, 6, Causal() & Window(20), bias=(4, 50, 50), sinks=True)
    monkeypatch.setattr(travel_module, "KEYS_PER_MESSAGE", 3)
    monkeypatch.setattr(part_module, "QUERIES_AT_ONCE", 5)
    travel_module._cached.cache_clear()
    found = on_ranks(call, ring_attention, 4)
    travel_module._cached.cache_clear()
    assert_equal(found, in_one_process(call), atol=1e-10)


def test_an_order_of_any_kind_gives_the_same():
    call = make_call(1, 2, 1, 12, 4, 4, Causal() & Window(7))
    from heedful.parallel import TokenOrder

    places = torch.randperm(12).split([5, 0, 4, 3])
    order = TokenOrder(tuple(part.sort().values for part in places))
    assert_equal(on_ranks(call, ring_attention, 4, order=order), in_one_process(call), atol=1e-10)


def peak_bytes(function):
    """Return the result of a function, and the most bytes of tensors that it had at once besides those it was given."""
    with _Meter() as meter:
        result = function()
    return result, meter.peak


def test_a_rank_of_four_needs_a_third_of_the_memory(monkeypatch):
    """The proportions are those of 262,144 tokens, with messages and blocks of queries of the sizes in use."""
    tokens, scale = 8192, 262_144 // 8192
    monkeypatch.setattr(travel_module, "KEYS_PER_MESSAGE", travel_module.KEYS_PER_MESSAGE // scale)
    monkeypatch.setattr(part_module, "QUERIES_AT_ONCE", part_module.QUERIES_AT_ONCE // scale)
    travel_module._cached.cache_clear()
    call = make_call(1, 1, 1, tokens, 64, 64, Causal()).to(torch.float32)
    tensors = [call.tensors[name] for name in ("query", "key", "value")]
    given = sum(4 * tensor.numel() for tensor in tensors)
    whole, peak = peak_bytes(lambda: attention(*tensors, Causal()))
    order = balanced_order(Causal(), tokens, 4)

    def rank(group):
        mine = [shard(tensor, group, order) for tensor in tensors]
        output, peak = peak_bytes(lambda: ring_attention(*mine, Causal(), group=group, order=order))
        return unshard(output, group, order), sum(4 * tensor.numel() for tensor in mine) + peak

    for output, bytes_of_rank in simulate(rank, 4):
        assert bytes_of_rank <= (given + peak) / 3
        torch.testing.assert_close(output, whole, rtol=0, atol=1e-5)
    travel_module._cached.cache_clear()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_without_a_mask_every_key_goes_to_every_other_rank_once(ranks):
    call = make_call(2, 4, 2, 32, 8, 6).to(torch.float32)
    keys = 2 * 2 * (32 // ranks) * (8 + 6) * 4  # B · Hkv · own · (D + Dv) · bytes
    expected = [((ranks - 1) * keys, 2 * (ranks - 1) * keys)] * ranks
    assert bytes_sent(call, ring_attention, contiguous_order(32, ranks), ranks) == expected


def test_a_window_sends_its_overlap_only():
    call = make_call(1, 1, 1, 400, 8, 8, Window(11)).to(torch.float32)
    overlap = 10 * (8 + 8) * 4
    found = bytes_sent(call, ring_attention, contiguous_order(400, 4), 4)
    assert [forward for forward, _ in found] == [overlap, overlap, overlap, 0]
    # In the backward pass, keys again, and gradients of what was received.
    assert [backward for _, backward in found] == [overlap, 2 * overlap, 2 * overlap, overlap]


def test_documents_of_their_own_send_nothing():
    ids = torch.arange(4).repeat_interleave(8)
    call = make_call(1, 1, 1, 32, 8, 8, Documents(ids)).to(torch.float32)
    assert bytes_sent(call, ring_attention, contiguous_order(32, 4), 4) == [(0, 0)] * 4


def test_gradients_of_bfloat16_return_in_float32():
    call = make_call(1, 1, 1, 32, 8, 8).to(torch.bfloat16)
    keys = 16 * (8 + 8)
    assert (
        bytes_sent(call, ring_attention, contiguous_order(32, 2), 2)
        == [(2 * keys, 2 * keys + 4 * keys)] * 2
    )


def test_keys_that_no_query_sees_are_never_read():
    mask = Causal() & Padding([9, 20])
    call = make_call(2, 2, 1, 20, 4, 4, mask)
    expected = on_ranks(call, ring_attention, 3)
    for name in ("key", "value"):
        call.tensors[name][0, :, 9:] = torch.nan
    assert_equal(on_ranks(call, ring_attention, 3), expected, atol=0)


def test_a_pass_without_gradients_keeps_none():
    call = make_call(1, 2, 1, 10, 4, 4, Causal())
    order = balanced_order(Causal(), 10, 2)

    def run(group):
        mine = [shard(call.tensors[name], group, order) for name in ("query", "key", "value")]
        mine[0].requires_grad_()
        with torch.no_grad():
            assert not ring_attention(*mine, Causal(), group=group, order=order).requires_grad
        output = ring_attention(*mine, Causal(), group=group, order=order)
        with count_traffic() as traffic:
            output.sum().backward()
        return traffic.bytes

    # Only the query needs a gradient: keys are sent again, and nothing returns.
    assert sum(simulate(run, 2)) == sum(
        forward for forward, _ in bytes_sent(call, ring_attention, order, 2)
    )


def test_differentiating_twice_is_refused():
    def twice(group):
        x = torch.randn(1, 1, 3, 4, requires_grad=True)
        output = ring_attention(x, x, x, group=group, order=contiguous_order(3, 1))
        torch.autograd.grad(output.sum(), x, create_graph=True)

    with pytest.raises(KernelError, match="cannot be differentiated twice"):
        simulate(twice, 1)


def test_autocast_is_that_of_attention():
    call = make_call(1, 2, 1, 10, 4, 4, Causal()).to(torch.float32)

    def run(group):
        x = list(call.tensors.values())
        with torch.autocast("cpu", torch.bfloat16):
            return ring_attention(*x, Causal(), group=group, order=contiguous_order(10, 1))

    (output,) = simulate(run, 1)
    rounded = in_one_process(call.to(torch.bfloat16).to(torch.float64))["output"]
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, rounded.bfloat16(), rtol=1e-2, atol=1e-3)


def test_what_does_not_fit_is_refused():
    x, order = torch.zeros(1, 2, 4, 8), contiguous_order(8, 2)

    def call(**changed):
        arguments = {"query": x, "key": x, "value": x, "order": order} | changed
        tensors = [arguments.pop(name) for name in ("query", "key", "value")]
        simulate(lambda group: ring_attention(*tensors, **arguments, group=group), 2)

    with pytest.raises(
        ArgumentError, match="query: expected the 4 tokens of this rank, of 8 in all"
    ):
        call(query=x[:, :, :3])
    with pytest.raises(ArgumentError, match="key: expected the 4 tokens of this rank"):
        call(key=x[:, :, :3], value=x[:, :, :3])
    with pytest.raises(
        ArgumentError, match=r"bias: expected a shape that broadcasts to .*Tq=4, Tk=8"
    ):
        call(bias=torch.zeros(4, 4))
    with pytest.raises(ArgumentError, match="mask: expected a mask with key ranges"):
        call(mask=torch.eye(8).bool())
    with pytest.raises(ArgumentError, match="mask: expected the document of each of the 8 keys"):
        call(mask=Documents(torch.zeros(4).long()))
    with pytest.raises(ArgumentError, match="a TokenOrder for 2 ranks"):
        call(order=contiguous_order(8, 4))
    with pytest.raises(KernelError, match=r"torch_sdpa.*log-sum-exp"):
        call(kernel="torch_sdpa")
    with pytest.raises(ArgumentError, match="on the CPU"):
        call(query=x.to("meta"), key=x.to("meta"), value=x.to("meta"))
