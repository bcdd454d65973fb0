"""Targets that fail on ranks: each ends in time, with an error that names rank, line and cause."""

import subprocess
import sys
import time

import pytest
from ranks.mutants import RIGHT

from heedful.conformance.ranks.check import check_on_ranks
from heedful.conformance.ranks.layout import places, tokens_for
from heedful.errors import ArgumentError

PATIENCE = 2.0
START = """
import os
import time
import torch
import torch.distributed as dist
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
"""
END = """
        q = self.proj(x)
        return (q @ q.mT).softmax(-1) @ x
"""
FAULTS = {
    "raises": (
        "        if dist.get_rank() == 1:\n            raise ValueError('no rank 1')",
        "rank 1 raises, at mine.py:15: raise ValueError('no rank 1') (ValueError: no rank 1)",
    ),
    "ends": (
        "        dist.barrier()\n        if dist.get_rank() == 1:\n            os._exit(3)\n        dist.barrier()",
        "rank 1 ends, at mine.py:14: dist.barrier() (its process ended with exit code 3, after this line)",
    ),
    "waits": (
        "        if dist.get_rank() == 0:\n            dist.recv(torch.empty(2), 1 % dist.get_world_size())"
        " if dist.get_world_size() > 1 else None",
        "rank 0 waits, at mine.py:15: dist.recv(torch.empty(2), 1 % dist.get_world_size())",
    ),
    "refuses": (
        "        if dist.get_world_size() > 1:\n            raise ValueError('one rank only')",
        "rank 0 raises, at mine.py:15: raise ValueError('one rank only')",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_names_rank_line_and_cause_and_is_no_finding(fault, tmp_path):
    code, cause = FAULTS[fault]
    file = tmp_path / "mine.py"
    file.write_text(START.lstrip("\n") + code + END)
    began = time.monotonic()
    with pytest.raises(ArgumentError) as caught:
        check_on_ranks(f"{file}:Attention", 2, patience=PATIENCE)
    before, _, after = cause.partition("mine.py")
    message = str(caught.value)
    assert before in message
    assert f"mine.py{after}" in message
    assert time.monotonic() - began < 120


@pytest.mark.slow
def test_a_rank_that_sleeps_is_named_with_its_line(tmp_path):
    file = tmp_path / "mine.py"
    sleep = "        if dist.get_rank() == 1:\n            time.sleep(600)\n"
    file.write_text(START.lstrip("\n") + sleep + END)
    with pytest.raises(ArgumentError, match=r"rank 1 hangs, at .*mine\.py:15: time\.sleep\(600\)"):
        check_on_ranks(f"{file}:Attention", 2, patience=PATIENCE)


def test_an_attention_that_divides_nothing_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(START.lstrip("\n") + END)
    with pytest.raises(ArgumentError, match=r"--shard|without dealing"):
        check_on_ranks(f"{file}:Attention", 2, layout="replicated", patience=PATIENCE)


@pytest.mark.parametrize("ranks", [1, 17])
def test_a_number_of_ranks_that_is_no_comparison_is_refused(ranks):
    with pytest.raises(ArgumentError, match="2 to 16 ranks"):
        check_on_ranks("mine.py:Attention", ranks)


def test_a_target_that_does_not_exist_is_the_users_error(tmp_path):
    with pytest.raises(ArgumentError, match="an existing file"):
        check_on_ranks(f"{tmp_path}/none.py:Attention", 2)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
def test_every_token_is_on_one_rank(order, ranks):
    tokens = tokens_for(ranks)
    dealt = [
        place for rank in range(ranks) for place in places(order, tokens, rank, ranks).tolist()
    ]
    assert sorted(dealt) == list(range(tokens))


def test_the_command_exits_as_other_checks_do(tmp_path):
    source = (RIGHT / "gathered.py").read_text()
    wrong = tmp_path / "wrong.py"
    wrong.write_text(source.replace(" + dist.get_rank() * T", ""))
    command = [sys.executable, "-m", "heedful", "check"]

    def run(*arguments):
        return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)

    found = run(f"{wrong}:GatheredAttention", "--ranks", "2")
    assert found.returncode == 1, found.stderr
    assert "ranks-output-differs" in found.stdout
    assert "rank 1" in found.stdout
    assert "wrong.py:39" in found.stdout
    refused = run(f"{wrong}:GatheredAttention", "--ranks", "2", "--strict")
    assert refused.returncode == 2
    assert "--strict" in refused.stderr
