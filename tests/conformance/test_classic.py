"""A typical first attempt from a notebook with three bugs. The check names each of them with its line."""

import pytest

from heedful.conformance import Report, check
from heedful.conformance.calling.loading import loaded

SOURCE = """
import torch
from torch import nn

torch.manual_seed(123)
inputs = torch.rand(6, 3)
batch = torch.stack((inputs, inputs), dim=0)

attn_scores = batch @ batch.transpose(1, 2)  # the experiment before the class
attn_weights = torch.softmax(attn_scores, dim=-1)


class CausalAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, qkv_bias=False):
        super().__init__()
        self.d_out = d_out
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer(
            "mask", torch.triu(torch.ones(context_length, context_length), diagonal=1)
        )

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_value(x)

        scores = queries @ keys.transpose(1, 2)
        scores = scores.masked_fill(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        scaled = scores / keys.shape[-1] ** 0.5
        weights = torch.softmax(scaled, dim=-1)
        weights = self.dropout(weights)
        return weights @ values
"""
OUT_OF_PLACE = "scores = scores.masked_fill", "scores.masked_fill"
STALE_GLOBAL = "scaled = scores", "scaled = attn_scores"
WRONG_DIMENSION = "(scaled, dim=-1)", "(scaled, dim=1)"
NAMES = {
    OUT_OF_PLACE: "mask-unused",
    STALE_GLOBAL: "undefined-or-global-name",
    WRONG_DIMENSION: "softmax-wrong-dim",
}
FLAT_GLOBAL = "attn_scores = batch @ batch.transpose(1, 2)", "attn_scores = inputs @ inputs.T"


@pytest.fixture
def checked(tmp_path):
    """Return a function that checks the source with some edits."""

    def check_edited(*edits: tuple[str, str]) -> Report:
        source = SOURCE
        for old, new in edits:
            assert source.count(old) == 1
            source = source.replace(old, new)
        (tmp_path / "first.py").write_text(source)
        with loaded(str(tmp_path / "first.py:CausalAttention")) as target:
            return check(target)

    return check_edited


def line_of(edit: tuple[str, str]) -> int:
    return next(n for n, line in enumerate(SOURCE.splitlines(), 1) if edit[0] in line)


def lines_by_name(report: Report) -> dict[str, int]:
    assert all(finding.level == "bug" for finding in report.findings), str(report)
    return {finding.name: finding.place.line for finding in report.findings}


def test_the_correct_version_has_no_bugs(checked):
    assert lines_by_name(checked()) == {}


@pytest.mark.parametrize("edit", NAMES, ids=NAMES.get)
def test_each_bug_alone_is_one_finding(checked, edit):
    assert lines_by_name(checked(edit)) == {NAMES[edit]: line_of(edit)}


@pytest.mark.parametrize(
    "more", [[], [FLAT_GLOBAL]], ids=["batch of scores", "one matrix of scores"]
)
def test_three_bugs_are_three_findings_on_three_lines(checked, more):
    report = checked(*NAMES, *more)
    assert lines_by_name(report) == {name: line_of(edit) for edit, name in NAMES.items()}
    assert report.exit_code == 1


def test_the_report_describes_all_three_bugs(checked):
    text = " ".join(str(checked(*NAMES)).split())
    assert "Nothing uses the result of masked_fill" in text
    assert "scores.masked_fill(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)" in text
    assert "attn_scores" in text
    assert "along dimension 1 of 2 × 6 × 6" in text
    assert "softmax(dim=-1)" in text
