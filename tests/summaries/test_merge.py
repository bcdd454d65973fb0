"""Summaries of parts of the queries and keys merge into the summary of all."""

import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful import ArgumentError, Causal, Documents, Sinks, Window, attention, summarize
from strategies import calls, masks

STATISTICS = (
    *("lse", "mass", "entropy", "largest_weight", "mean_distance", "received_mass"),
    *("top_weights", "pooled_mean", "pooled_max"),
)


def assert_equal(actual, expected, atol=1e-5):
    for name in STATISTICS:
        ours, theirs = getattr(actual, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-4)
    assert list(actual.region_mass) == list(expected.region_mass)
    for name, mass in expected.region_mass.items():
        torch.testing.assert_close(actual.region_mass[name], mass, atol=atol, rtol=1e-4)
    assert (actual.queries, actual.keys, actual.cell) == (
        expected.queries,
        expected.keys,
        expected.cell,
    )


def cut(draw, total):
    """Draw neighbouring parts (first, last) of a number of tokens."""
    edges = sorted({0, total, *draw(st.lists(st.integers(0, total), max_size=2))})
    return list(pairwise(edges))


@st.composite
def parts(draw):
    """Draw a call in float64, statistics, and the parts of its queries and keys, in any order."""
    call = draw(calls(dtype=torch.float64))
    arguments = call.arguments()
    arguments.pop("value")
    B, Hq, Tq, _ = arguments["query"].shape
    Tk = arguments["key"].shape[2]
    options = {
        "top_k": draw(st.integers(0, 5)),
        "pool": draw(st.none() | st.integers(1, 5)),
        "regions": {"a": draw(masks(B, Hq, Tq, Tk, dense=False)), "b": (1, 3)},
    }
    rows, columns = cut(draw, Tq), cut(draw, Tk)
    places = draw(st.permutations([(q, k) for q in rows for k in columns]))
    return arguments, options, places


def summarize_part(arguments, options, place, lse=None):
    (q0, q1), (k0, k1) = place
    query, key = arguments["query"], arguments["key"]
    others = {name: value for name, value in arguments.items() if name not in ("query", "key")}
    if k0 > 0 and lse is None:
        others.pop("sinks", None)
    return summarize(
        query[:, :, q0:q1],
        key[:, :, k0:k1],
        **(others | options),
        lse=None if lse is None else lse[:, :, q0:q1],
        queries=(q0, query.shape[2]),
        keys=(k0, key.shape[2]),
    )


@given(parts())
def test_parts_with_the_log_sum_exp_of_all_keys_merge_into_the_whole(drawn):
    arguments, options, places = drawn
    whole = summarize(**arguments, **options)
    first, *others = (summarize_part(arguments, options, place, whole.lse) for place in places)
    assert_equal(first.merge(*others), whole)


@given(parts())
def test_parts_with_their_own_normalizers_merge_what_belongs_to_each_query(drawn):
    arguments, options, places = drawn
    options = options | {"pool": None, "for_each_key": False}
    whole = summarize(**arguments, **options)
    first, *others = (summarize_part(arguments, options, place) for place in places)
    assert_equal(first.merge(*others), whole)


def test_the_native_kernel_places_parts_in_the_map():
    query, key = torch.randn(1, 4, 300, 16), torch.randn(1, 2, 300, 16)
    ids = (torch.arange(300) // 70)[None]
    arguments = {"query": query, "key": key, "mask": Causal() & Documents(ids)}
    options = {"top_k": 3, "pool": 13, "regions": {"sinks": Sinks(2), "recent": Window(30)}}
    whole = summarize(**arguments, **options)
    places = [(q, k) for q in ((0, 99), (99, 300)) for k in ((0, 1), (1, 150), (150, 300))]
    first, *others = (summarize_part(arguments, options, place, whole.lse) for place in places)
    merged = first.merge(*others)
    assert_equal(merged, whole)
    assert torch.equal(merged.top_keys, whole.top_keys)


def test_top_keys_are_counted_from_the_first_of_all_keys():
    query, key = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 9, 8)
    parts = [
        summarize(query, part, keys=(i * 3, 9), top_k=4, for_each_key=False)
        for i, part in enumerate(key.split(3, dim=2))
    ]
    merged = parts[0].merge(*parts[1:])
    assert torch.equal(merged.top_keys, summarize(query, key, top_k=4).top_keys)


def test_what_cannot_be_merged_is_an_error():
    query, key = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 8, 8)
    lse = attention(query, key, key, return_lse=True).lse
    one = summarize(query, key[:, :, :4], keys=(0, 8), lse=lse)
    other = summarize(query, key[:, :, 4:], keys=(4, 8), lse=lse)
    one.merge(other)
    for bad, message in (
        (replace(other, lse=lse + 1), "the same lse in all parts of the keys"),
        (summarize(query, key[:, :, 4:], keys=(4, 8)), "the same statistics, heads and totals"),
        (summarize(query, key[:, :, 5:], keys=(5, 8), lse=lse), "keys that are next to each other"),
        (one, "keys that are next to each other"),
        (summarize(query, key[:, :, 4:], keys=(4, 8), lse=lse, top_k=1), "the same statistics"),
        (summarize(query, key[:, :, 4:], keys=(4, 9), lse=lse), "the same statistics"),
    ):
        with pytest.raises(ArgumentError, match=message):
            one.merge(bad)
    own = [
        summarize(query, part, keys=(i, 8)) for i, part in ((0, key[:, :, :4]), (4, key[:, :, 4:]))
    ]
    with pytest.raises(ArgumentError, match="the log-sum-exp of all keys, for the received mass"):
        own[0].merge(own[1])
    rows = [summarize(query[:, :, i : i + 1], key, queries=(i, 4)) for i in (0, 2)]
    with pytest.raises(ArgumentError, match="queries that are next to each other"):
        rows[0].merge(rows[1])
    corner = summarize(query[:, :, 2:], key[:, :, 4:], queries=(2, 4), keys=(4, 8))
    with pytest.raises(ArgumentError, match="the same keys for every part of the queries"):
        summarize(query[:, :, :2], key[:, :, :4], queries=(0, 2 + 2), keys=(0, 8)).merge(corner)


def test_a_summary_alone_is_itself():
    query = torch.randn(1, 1, 4, 8)
    summary = summarize(query, query, rows=[1])
    assert_equal(summary.merge(), summary, atol=0)


def test_summaries_can_be_sent():
    query = torch.randn(1, 1, 4, 8)
    summary = summarize(query, query, top_k=2, pool=2, regions={"a": (0, 1)}, rows=[1])
    assert_equal(pickle.loads(pickle.dumps(summary)), summary, atol=0)


PROCESS = """
import sys, torch
import torch.distributed as dist
from heedful import Causal, summarize
rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
torch.manual_seed(0)
query, key = torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 8)
mine = slice(rank * 20, rank * 20 + 20)
part = summarize(query[:, :, mine], key, Causal(), queries=(rank * 20, 40), pool=8)
parts = [None, None]
dist.all_gather_object(parts, part)
merged, whole = parts[0].merge(parts[1]), summarize(query, key, Causal(), pool=8)
torch.testing.assert_close(merged.received_mass, whole.received_mass)
torch.testing.assert_close(merged.pooled_mean, whole.pooled_mean)
torch.testing.assert_close(merged.entropy, whole.entropy)
dist.destroy_process_group()
"""


def test_parts_of_two_processes_merge(tmp_path):
    commands = [
        [sys.executable, "-c", PROCESS, str(rank), str(tmp_path / "store")] for rank in (0, 1)
    ]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
