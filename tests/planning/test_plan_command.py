"""`heedful plan`: its options, what it prints, and its errors."""

import json

import pytest
import torch
from typer.testing import CliRunner

from heedful.cli import app
from heedful.errors import ArgumentError
from heedful.masks import Causal, Documents, Window
from heedful.parallel import AttentionSizes, Hardware, Rate, plan
from heedful.planning import rates
from heedful.planning.options import read_amount, read_count, read_mask

NEEDED = {
    "--tokens": "8K",
    "--heads": "8",
    "--key-heads": "2",
    "--head-size": "64",
    "--ranks": "4",
    "--bandwidth": "1GB/s",
    "--flops": "1TFLOP/s",
}


def run(*more, **changed):
    options = NEEDED | {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    arguments = [text for pair in options.items() for text in pair]
    return CliRunner().invoke(app, ["plan", *arguments, *more])


def expected(mask, **changed):
    rate = Rate(1e12, 1e12)
    sizes = AttentionSizes(1, 8, 2, 64, 64, **changed)
    return plan(mask, 8192, 4, sizes, Hardware(rate, rate, 1e9))


def test_the_table_has_a_row_for_each_split_and_names_the_best():
    result = run()
    assert result.exit_code == 0, result.output
    found = expected(Causal())
    for split in found.splits:
        assert sum(line.startswith(split.name + "  ") for line in result.output.splitlines()) == 1
    assert f"Take {found.best.name}: {found.reason}." in result.output.replace("\n", " ")
    assert "8,192 tokens, 8 query heads, 2 key heads, head size 64, fp32, causal, on 4 ranks" in (
        result.output
    )
    assert "computes 1 TFLOP/s forward and 1 TFLOP/s backward (as given)" in result.output
    assert "1 GB/s" in result.output


def test_splits_that_cannot_be_are_there_with_the_reason():
    output = " ".join(run(heads="2").output.split())
    assert "Ulysses 4 2 query heads cannot be dealt out to 4 ranks" in output


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("full", None),
        ("causal", Causal()),
        ("window:1K", Window(1024)),
        ("documents:6K,1K", Causal() & Documents([0] * 6144 + [1] * 1024 + [2] * 1024)),
    ],
)
def test_json_has_what_plan_returns(text, mask):
    document = json.loads(run("--json", mask=text, dtype="bf16").output)
    found = expected(mask, dtype=torch.bfloat16)
    assert document["mask"] == text
    assert document["best"] == found.best.name
    for split, predicted in zip(document["splits"], found.splits, strict=True):
        for name in ("name", "seconds", "forward_seconds", "memory_bytes", "sent_bytes", "ring"):
            assert split[name] == getattr(predicted, name), name


def test_rates_are_measured_unless_they_are_given(monkeypatch):
    monkeypatch.setattr(rates, "TOKENS", 256)
    asked = []
    monkeypatch.setattr(
        "heedful.planning.command.measure_rate",
        lambda sizes, dtype: asked.append(dtype) or Rate(2e9, 1e9),
    )
    result = run(flops="measured", dtype="bf16")
    assert asked == [torch.bfloat16, torch.float32]
    assert "computes 2 GFLOP/s forward and 1 GFLOP/s backward (measured here on" in result.output


def test_a_measured_rate_is_that_of_this_machine():
    rate = rates.measure_rate(AttentionSizes(1, 1, 1, 16, 16), torch.float32, tokens=128)
    assert 1e6 < rate.backward < 1e14
    assert 1e6 < rate.forward < 1e14


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("tokens", "1.5"),
        ("tokens", "0"),
        ("tokens", "many"),
        ("tokens", "2G"),
        ("tokens", "1" * 400),
        ("bandwidth", "-1"),
        ("bandwidth", "5 FLOP/s"),
        ("flops", "0"),
        ("flops", "1" * 400),
        ("float32_flops", "fast"),
        ("mask", "sliding"),
        ("mask", "window:"),
        ("mask", "window:0"),
        ("mask", "documents:8K,x"),
    ],
)
def test_what_cannot_be_used_is_named(option, text):
    result = run(**{option: text})
    assert result.exit_code == 2
    assert f"heedful plan: --{option.replace('_', '-')}" in result.stderr
    assert "expected" in result.stderr


def test_numbers_have_units():
    assert read_count("--tokens", "1M") == 2**20
    assert read_count("--tokens", "1.5k") == 1536
    assert read_amount("--flops", "989TFLOP/s", "FLOP/s") == 989e12
    assert read_amount("--bandwidth", "12.5 GB/s", "B/s") == 12.5e9
    with pytest.raises(ArgumentError, match="The unit is B/s"):
        read_amount("--bandwidth", "3 bits", "B/s")


def test_documents_repeat_until_all_tokens_have_one():
    mask = read_mask("documents:3,2", 12)
    assert torch.equal(
        mask.dense(12), (Causal() & Documents([0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4])).dense(12)
    )
