"""Tiles of kept queries and keys are the blocks of the dense weights, and the file goes with the process."""

import errno
import os
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful import ArgumentError, Causal, summarize
from heedful.problem import AttentionProblem
from heedful.viewer.models.kept_attention import KeptAttention
from strategies import calls
from summaries.dense import pooled, weights_of

ATOL = {torch.float32: 3e-6, torch.bfloat16: 3e-6}
one_text = [
    calls(dtype=dtype).filter(lambda call: call.tensors["query"].shape[0] == 1) for dtype in ATOL
]


@st.composite
def tiles(draw):
    """Draw the arguments of attention for one text, and a tile of it."""
    arguments = draw(st.one_of(one_text)).arguments()
    spans = []
    for length in (arguments["query"].shape[2], arguments["key"].shape[2]):
        edges = st.tuples(st.integers(0, length), st.integers(0, length)).filter(
            lambda it: it[0] != it[1]
        )
        spans.append(tuple(sorted(draw(edges))))
    head = draw(st.integers(0, arguments["query"].shape[1] - 1))
    return (
        arguments,
        {"head": head, "rows": spans[0], "columns": spans[1]},
        draw(st.integers(1, 13)),
    )


def problem_of(arguments: dict) -> AttentionProblem:
    """Return the problem of arguments of attention as `attention_of` shows it."""
    return AttentionProblem(**{**arguments, "value": arguments["key"]})


def summary_of(arguments: dict):
    return summarize(**{name: it for name, it in arguments.items() if name != "value"})


@given(tiles())
def test_a_tile_is_that_of_the_dense_weights(drawn):
    arguments, where, cells = drawn
    (a, b), (c, d) = where["rows"], where["columns"]
    exact, _ = weights_of(arguments)
    block = -(-(b - a) // cells), -(-(d - c) // cells)
    mean, maximum = pooled(exact[:, where["head"] : where["head"] + 1, a:b, c:d], block)
    with KeptAttention(size=0) as kept:
        other = torch.zeros(1, 1, 3, 4)
        kept.add(AttentionProblem(other, other, other), summarize(other, other))
        kept.add(problem_of(arguments), summary_of(arguments))
        tile = kept.tile(layer=1, cells=cells, **where)
        assert kept.sizes[1] == (*arguments["query"].shape[1:3], arguments["key"].shape[2])
    atol = ATOL[arguments["query"].dtype]
    torch.testing.assert_close(tile.mean.double(), mean[0, 0], atol=atol, rtol=1e-5)
    torch.testing.assert_close(tile.maximum.double(), maximum[0, 0], atol=atol, rtol=1e-5)


def test_what_a_tensor_repeats_is_kept_once():
    x, bias = torch.randn(1, 4, 50, 8), torch.randn(1, 1, 50, 50)
    with KeptAttention(size=0) as kept:
        kept.add(AttentionProblem(x, x, x, None, bias), summarize(x, x, bias=bias))
        size = kept._file.seek(0, os.SEEK_END)
    assert size < 2 * x.nbytes + bias.nbytes + 4 * 4 * 50 + 4 * 64


def test_a_disk_without_room_is_refused_beforehand(monkeypatch):
    usage = namedtuple("usage", "total used free")(10**12, 10**12, 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(
        ArgumentError, match=r"expected 3,000 MB free .* received 1,000 MB"
    ) as caught:
        KeptAttention(size=3 * 10**9)
    assert "TMPDIR" in caught.value.remedy


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_disk_that_fills_up_meanwhile_is_an_error():
    x = torch.randn(1, 2, 500, 8)
    with KeptAttention(size=0) as kept, open("/dev/full", "r+b") as full:
        kept._file.close()
        kept._file = full
        full.seek = lambda *_: 0
        with pytest.raises(ArgumentError, match=os.strerror(errno.ENOSPC)):
            kept.add(AttentionProblem(x, x, x, Causal()), summarize(x, x, Causal()))


KILLED = """
import os, signal, torch
from heedful import Causal, summarize
from heedful.problem import AttentionProblem
from heedful.viewer.models.kept_attention import KeptAttention
x = torch.randn(1, 2, 5000, 64)
kept = KeptAttention(size=x.nbytes)
kept.add(AttentionProblem(x, x, x, Causal()), summarize(x, x, Causal()))
kept.tile(layer=0, head=0, rows=(0, 9), columns=(0, 9), cells=3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_file_is_left_however_the_process_ends(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_the_one_that_the_user_names(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with KeptAttention(size=0) as kept:
        assert kept.folder == tmp_path
