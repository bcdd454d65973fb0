"""Predicted time and memory: closed formulas, and what simulated ranks really hold."""

import pytest
import torch
from parallel_cases import make_call

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.masks import Causal, Dense, KeyRanges, Window
from heedful.metering import _Meter
from heedful.parallel import (
    AttentionSizes,
    Hardware,
    Rate,
    balanced_order,
    contiguous_order,
    memory,
    mesh_attention,
    plan,
    ring_attention,
    shard,
    simulate,
    ulysses_attention,
)
from heedful.parallel import part as part_module
from heedful.parallel import travel as travel_module
from heedful.parallel.agreement import MESSAGE_BYTES
from heedful.parallel.cost import ranks_of_mesh
from heedful.parallel.schedule import backward_seconds, forward_seconds
from heedful.parallel.travel import KEYS_PER_MESSAGE

SIZES = AttentionSizes(batch=1, query_heads=8, key_heads=4, head_size=16, value_size=8)
FORWARD, BACKWARD = 2 * (16 + 8), 2 * (3 * 16 + 2 * 8)  # operations of a pair
RATE = Rate(forward=1e9, backward=5e8)
TOKENS = 2 * KEYS_PER_MESSAGE  # on two ranks, one message each way


def times(ranks, ulysses, mask=None, *, bandwidth, latency=0.0, rate=RATE, sizes=SIZES):
    hardware = Hardware(rate, RATE, bandwidth, latency)
    order = balanced_order(mask, TOKENS, ranks)
    mesh = ranks_of_mesh(mask, order, sizes, ulysses)
    return forward_seconds(mesh, hardware), backward_seconds(mesh, hardware)


@pytest.mark.parametrize("mask", [None, Window(300)])
@pytest.mark.parametrize("ulysses", [1, 2, 4])
def test_without_transfers_time_is_that_of_the_busiest_rank(mask, ulysses):
    forward, backward = times(4, ulysses, mask, bandwidth=1e30)
    order = balanced_order(mask, TOKENS, 4)
    pairs = max(rank.pairs for rank in ranks_of_mesh(mask, order, SIZES, ulysses))
    computed = pairs * FORWARD / RATE.forward
    again = 0 if ulysses == 4 else computed  # Ulysses alone has kept the weights' normalizers
    assert forward == pytest.approx(computed)
    assert backward == pytest.approx(again + pairs * BACKWARD / RATE.backward)


@pytest.mark.parametrize("bandwidth", [1e3, 2e5, 1e9])
def test_the_ring_transfers_keys_while_it_computes_its_own(bandwidth):
    forward, backward = times(2, 1, bandwidth=bandwidth, latency=0.5)
    own = KEYS_PER_MESSAGE**2 * 8 * FORWARD / RATE.forward
    transfer = 0.5 + KEYS_PER_MESSAGE * 4 * (16 + 8) * 4 / bandwidth
    agreement = 0.5 + MESSAGE_BYTES / bandwidth
    assert forward == pytest.approx(agreement + max(own, transfer) + own)
    part = own + KEYS_PER_MESSAGE**2 * 8 * BACKWARD / RATE.backward
    # The gradients of the last part return when nothing is left to compute.
    assert backward == pytest.approx(agreement + max(part, transfer) + part + transfer)


def test_a_causal_ring_keeps_all_ranks_busy(monkeypatch):
    """Some ranks need all keys of another, some half of them; they go through equally many messages."""
    monkeypatch.setattr(travel_module, "KEYS_PER_MESSAGE", 16)
    order = balanced_order(Causal(), 2048, 8)
    mesh = ranks_of_mesh(Causal(), order, SIZES, 1)
    pairs = max(rank.pairs for rank in mesh)
    link = Hardware(RATE, RATE, bandwidth=1e8)
    assert forward_seconds(mesh, link) <= 1.02 * pairs * FORWARD / RATE.forward


def test_a_rank_receives_one_message_at_a_time():
    bandwidth = 1e5
    fast = Rate(forward=1e30, backward=1e30)
    order = contiguous_order(TOKENS, 4)
    mesh = ranks_of_mesh(None, order, SIZES, 1)
    link = Hardware(fast, fast, bandwidth, 0.125)
    transfer = 0.125 + TOKENS // 4 * 4 * (16 + 8) * 4 / bandwidth
    agreement = 0.125 + 3 * MESSAGE_BYTES / bandwidth
    assert forward_seconds(mesh, link) == pytest.approx(agreement + 3 * transfer)
    # Gradients take as long as keys, and go the other way, between the same messages.
    assert backward_seconds(mesh, link) == pytest.approx(agreement + 6 * transfer)


def test_messages_of_different_senders_follow_one_another():
    """Of 3 ranks, only the last one needs keys of others."""
    own = torch.arange(TOKENS // 3 * 3) // (TOKENS // 3)
    start = torch.where(own == 2, 0, own * (TOKENS // 3))
    mask = KeyRanges(Intervals.single(start[None], (own[None] + 1) * (TOKENS // 3), len(own)))
    fast = Rate(forward=1e30, backward=1e30)
    mesh = ranks_of_mesh(mask, contiguous_order(len(own), 3), SIZES, 1)
    transfer = TOKENS // 3 * 4 * (16 + 8) * 4 / 1e5
    agreement = 2 * MESSAGE_BYTES / 1e5
    assert forward_seconds(mesh, Hardware(fast, fast, 1e5)) == pytest.approx(
        agreement + 2 * transfer
    )


def test_ulysses_computes_nothing_while_it_exchanges():
    bandwidth = 1e6
    forward, backward = times(2, 2, bandwidth=bandwidth, latency=0.25)
    pairs = 4 * TOKENS**2
    inputs = KEYS_PER_MESSAGE * (4 * 16 + 2 * (16 + 8)) * 4  # half of the heads of a rank's tokens
    outputs = KEYS_PER_MESSAGE * 4 * (8 + 1) * 4
    exchange = 5 * 0.25 + (inputs + outputs) / bandwidth
    agreement = 0.25 + MESSAGE_BYTES / bandwidth
    assert forward == pytest.approx(agreement + exchange + pairs * FORWARD / RATE.forward)
    computed = pairs * BACKWARD / RATE.backward
    assert backward == pytest.approx(2 * agreement + exchange + computed)


def test_a_window_waits_for_its_neighbor_only():
    """Of 8 ranks, each gets 299 keys of one other, which arrive before it needs them."""
    bandwidth = 1e9
    forward, _ = times(8, 1, Window(300), bandwidth=bandwidth)
    order = contiguous_order(TOKENS, 8)
    pairs = max(rank.pairs for rank in ranks_of_mesh(Window(300), order, SIZES, 1))
    assert forward == pytest.approx(pairs * FORWARD / RATE.forward + 7 * MESSAGE_BYTES / bandwidth)


def test_narrow_numbers_are_computed_in_float32_where_the_ring_or_shared_keys_are():
    narrow = AttentionSizes(1, 8, 4, 16, 8, torch.bfloat16)
    fast = Rate(forward=4e9, backward=2e9)
    for ranks, ulysses, share in ((4, 1, 1.0), (4, 2, 1.0), (8, 8, 1.0), (4, 4, 0.25)):
        options = {"bandwidth": 1e30, "sizes": narrow}
        forward, backward = times(ranks, ulysses, rate=fast, **options)
        slow_forward, slow_backward = times(ranks, ulysses, **options)
        assert forward == pytest.approx(share * slow_forward)
        assert backward == pytest.approx(share * slow_backward)


def metered(call, function, order, sizes, *, backward):
    """Return the most bytes of tensors that a simulated rank has at once."""

    def rank(group):
        names = "query", "key", "value"
        mine = [shard(call.tensors[name], group, order).contiguous() for name in names]
        given = sum(tensor.nbytes for tensor in mine)
        for tensor in mine:
            tensor.requires_grad_(backward)
        with _Meter() as meter:
            output = function(*mine, call.mask, group=group, order=order)
            if backward:
                output.backward(torch.ones_like(output))
        return given + meter.peak

    return max(simulate(rank, *sizes))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("function", "sizes", "ulysses"),
    [
        (ring_attention, (1,), 1),
        (ring_attention, (4,), 1),
        (ulysses_attention, (4,), 4),
        (mesh_attention, (2, 2), 2),
    ],
)
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
def test_predicted_memory_is_that_of_ranks(
    function, sizes, ulysses, heads, backward, dtype, monkeypatch
):
    """The proportions are those of long sequences, with small messages and blocks of queries."""
    for module in (travel_module, memory):
        monkeypatch.setattr(module, "KEYS_PER_MESSAGE", 64)
    for module in (part_module, memory):
        monkeypatch.setattr(module, "QUERIES_AT_ONCE", 256)
    travel_module._cached.cache_clear()
    call = make_call(1, *heads, 2048, 32, 32, Causal()).to(dtype)
    ranks = torch.tensor(sizes).prod().item()
    order = balanced_order(call.mask, 2048, ranks)
    found = metered(call, function, order, sizes, backward=backward)
    travel_module._cached.cache_clear()
    attention_sizes = AttentionSizes(1, *heads, 32, 32, dtype)
    mesh = ranks_of_mesh(call.mask, order, attention_sizes, ulysses)
    predicted = [
        memory.peak_bytes(rank, backward=backward) - memory.mask_bytes(rank) for rank in mesh
    ]
    travel_module._cached.cache_clear()
    assert 0.85 * found <= max(predicted) <= 1.15 * found


def hardware(**changed):
    return Hardware(**{"rate": RATE, "wide_rate": RATE, "bandwidth": 1e9} | changed)


def test_a_slow_link_makes_ulysses_better_and_few_heads_limit_it():
    sizes = AttentionSizes(1, 8, 8, 64, 64)
    found = plan(None, 4096, 8, sizes, hardware(bandwidth=1e6))
    assert found.best.name == "Ulysses 8"
    assert found.best.sent_bytes == min(split.sent_bytes for split in found.splits)
    assert found.reason.startswith("the fastest; its ranks compute for")
    few = plan(None, 4096, 8, AttentionSizes(1, 2, 1, 64, 64), hardware(bandwidth=1e6))
    assert [split.name for split in few.splits] == ["ring 8", "ring 4 × Ulysses 2"]
    assert [name for name, _ in few.refused] == ["ring 2 × Ulysses 4", "Ulysses 8"]
    assert few.splits[1].notes == ("key heads: 1 on 2 ranks, sent to all that read them",)


def test_memory_decides_between_splits_that_are_equally_fast():
    found = plan(None, 4096, 8, AttentionSizes(1, 4, 4, 64, 64), hardware(bandwidth=1e30))
    assert len(found.splits) == 3
    fastest = min(split.seconds for split in found.splits)
    assert max(split.seconds for split in found.splits) <= 1.03 * fastest
    memories = [split.memory_bytes for split in found.splits]
    assert max(memories) > min(memories) == found.best.memory_bytes
    assert found.reason.startswith("as fast as")
    assert "with the least memory" in found.reason


def test_a_long_sequence_on_many_ranks_takes_memory_linear_in_its_length():
    def run(tokens):
        with _Meter() as meter:
            plan(Causal(), tokens, 16, SIZES, hardware())
        return meter.peak

    assert run(2**17) < 1.1 * 4 * run(2**15)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bandwidth": 0.0}, "hardware.bandwidth: expected a number above 0"),
        ({"bandwidth": float("nan")}, "hardware.bandwidth: expected a number above 0"),
        ({"latency": -1.0}, "hardware.latency"),
        ({"rate": Rate(0.0, 1.0)}, "hardware.rate.forward"),
    ],
)
def test_hardware_that_cannot_be_is_refused(changed, message):
    with pytest.raises(ArgumentError, match=message):
        plan(None, 64, 2, SIZES, hardware(**changed))


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(ArgumentError, match=r"sizes\.key_heads: expected a divisor of 8"):
        plan(None, 64, 2, AttentionSizes(1, 8, 3, 8, 8), hardware())
    with pytest.raises(ArgumentError, match="key ranges"):
        plan(Dense(torch.eye(8).bool()), 8, 2, SIZES, hardware())
    with pytest.raises(ArgumentError, match="ranks: expected an integer"):
        plan(None, 64, 0, SIZES, hardware())
