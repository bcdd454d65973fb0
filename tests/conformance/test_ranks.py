"""Attentions over ranks: right ones are silent, and each published bug is named with rank and line."""

from pathlib import Path

import pytest
from ranks.mutants import MUTANTS, RIGHT

from heedful.conformance.ranks.check import check_on_ranks

QUICK = ("gradients of gathered keys and values are not", "is that of their mean")
ATTENTIONS = {
    "gathered:GatheredAttention": "contiguous",
    "ring:RingAttention": "contiguous",
    "zigzag:ZigzagRingAttention": "zigzag",
    "tensor_parallel:ParallelAttention": "replicated",
    "ulysses:UlyssesAttention": "contiguous",
}


@pytest.mark.parametrize("base", ATTENTIONS)
def test_a_right_attention_is_silent(base):
    file, _, name = base.partition(":")
    arguments = {"dropout": "0.5"} if "Parallel" in name else {}
    report = check_on_ranks(f"{RIGHT / file}.py:{name}", 2, arguments=arguments)
    assert not report.findings
    layout = next(fact.value for fact in report.facts if fact.name == "tokens")
    assert layout.partition(":")[0] == ATTENTIONS[base]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("base", ATTENTIONS)
def test_a_right_attention_is_silent_on_more_ranks(base, ranks):
    file, _, name = base.partition(":")
    heads = {"num_heads": "6", "d_model": "24"} if ranks == 3 else {}
    if "kv_heads" in (RIGHT / f"{file}.py").read_text():
        heads |= {"num_kv_heads": str(ranks)}
    assert not check_on_ranks(f"{RIGHT / file}.py:{name}", ranks, arguments=heads).findings


def _marked(mutant):
    slow = not any(text in mutant.name for text in QUICK)
    return pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize("mutant", [_marked(it) for it in MUTANTS])
def test_a_published_bug_is_named_with_rank_and_line(mutant, tmp_path):
    report = check_on_ranks(
        mutant.written(tmp_path), mutant.ranks, arguments=dict(mutant.arguments)
    )
    (finding,) = report.findings
    assert (finding.name, finding.level) == (mutant.finding, "bug")
    assert finding.place is not None
    assert mutant.blamed in finding.place.source
    assert f"rank {mutant.rank}" in finding.proof
    assert report.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [it for it in MUTANTS if it.ranks > 2], ids=lambda it: it.name)
def test_the_right_version_is_silent_on_as_many_ranks(mutant):
    assert not check_on_ranks(mutant.target, mutant.ranks).findings


def test_the_page_lists_every_bug():
    page = (Path(__file__).parents[2] / "docs" / "conformance-ranks.md").read_text(encoding="utf-8")
    table = page[page.index("| bug |") :].splitlines()[2:]
    named = [line.split(" | ")[0].removeprefix("| ") for line in table]
    assert named == [mutant.name for mutant in MUTANTS]


GATHERED = """import torch
import torch.distributed as dist
from torch import nn


class GatheredAttention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if dist.get_world_size() > 1:
            k, v = (self.gathered(it.contiguous()) for it in (k, v))
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        seen = torch.ones(scores.shape[1:]).tril().bool()
        return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v

    def gathered(self, own):
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        return torch.cat(parts, dim=1)
"""


@pytest.mark.slow
def test_tensors_without_a_gradient_are_no_obstacle(tmp_path):
    """Gathered keys and values have none, and neither have two of the three parts that a chunk returns."""
    file = tmp_path / "gathered.py"
    file.write_text(GATHERED)
    (finding,) = check_on_ranks(f"{file}:GatheredAttention", 2).findings
    assert finding.name == "ranks-output-differs"
    assert "rank 1" in finding.proof
    assert finding.place is not None
    assert "masked_fill" in finding.place.source
