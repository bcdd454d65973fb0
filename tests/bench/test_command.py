"""`heedful bench` on the command line: its output, its files, and its exit code."""

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from heedful.bench.cases import CASES
from heedful.bench.peers import Contender, Peer, contender, pytorch, registry
from heedful.bench.report import plot
from heedful.bench.run import QUICK_BUDGET
from heedful.cli import app
from heedful.functional import attention

QUICK = ("--quick", "--peer", "sdpa")
TARGETS = ("--targets", str(Path(__file__).parents[2] / "benchmarks" / "targets.toml"))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run each test in an empty folder."""
    monkeypatch.chdir(tmp_path)


def run(*arguments: str):
    return CliRunner().invoke(app, ["bench", *arguments])


def document(*arguments: str) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# --- output ------------------------------------------------------------------------------------------


def test_shares_are_of_the_highest_peak(monkeypatch):
    """The first measurement of the peak was disturbed; the one after the last case was not."""
    measured = iter(({"fma": 1e6}, {"fma": 1e15}))
    monkeypatch.setattr("heedful.bench.run.measure_peaks", lambda probes: next(measured))
    (case,) = document(*QUICK, "--case", "training-fp32")["cases"]
    assert case["share"]["of"] == "fma"
    assert 0 < case["share"]["low"] <= case["share"]["median"] < 1


def test_json_contains_the_measurements():
    found = document(*QUICK, "--case", "training-fp32", "--case", "decode-b1-bf16")
    assert found["right"] is True
    assert found["quick"] is True
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert all(peak > 1e6 for peak in found["peaks_per_second"].values())
    decode, training = found["cases"]
    assert [case["name"] for case in (decode, training)] == ["decode-b1-bf16", "training-fp32"]
    for case in (decode, training):
        assert set(case["seconds"]) == {"heedful", "sdpa"}
        for spread in case["seconds"].values():
            assert 0 < spread["low"] <= spread["median"] <= spread["high"]
        assert case["ratios"]["sdpa"]["median"] > 0
        assert case["requirements"] == []
        assert case["verdict"] is None
    assert [check["quantity"] for check in training["checks"]] == [
        "output",
        "grad query",
        "grad key",
        "grad value",
    ]
    assert all(check["error"] <= check["allowed"] for check in training["checks"])


def test_text_has_a_line_for_each_case_and_peer():
    result = run("--quick", "--case", "padded", "--case", "small-b1-t1")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert result.stderr == ""
    for name in ("padded-fp32", "padded-bf16", "small-b1-t1-bf16"):
        line = next(line for line in result.stdout.splitlines() if line.startswith(name))
        assert "sdpa" in line
    assert "All results are accurate" in result.stdout
    assert "required" not in result.stdout


def test_results_are_compared_on_several_numbers_of_threads():
    (case,) = document(*QUICK, *TARGETS, "--case", "threads-fp32")["cases"]
    assert case["verdict"] in ("holds", "MISSED")
    assert case["requirements"][0]["quantity"] == "equal"


def test_memory_is_measured_in_a_fresh_process():
    (case,) = document(*QUICK, *TARGETS, "--case", "memory-fp32")["cases"]
    assert case["verdict"] == "holds"
    assert case["requirements"][0]["measured"].endswith("MiB")


def test_the_page_shows_the_machine_the_cases_and_the_missed_targets(tmp_path):
    result = run(*QUICK, *TARGETS, "--case", "padded", "--page", "benchmarks.md")
    assert result.exit_code == 0
    text = (tmp_path / "benchmarks.md").read_text()
    assert text.startswith("# Benchmarks")
    assert f"| torch | {torch.__version__} |" in text
    assert "| `padded-bf16` | sdpa |" in text
    assert "## Missed" in text


def test_without_targets_nothing_is_judged(tmp_path):
    result = run(
        *QUICK,
        "--case",
        "padded-fp32",
        "--case",
        "memory-fp32",
        "--case",
        "threads-fp32",
        "--page",
        "page.md",
    )
    assert result.exit_code == 0
    page = (tmp_path / "page.md").read_text()
    assert "| `memory-fp32` |  |  |  | " in page
    assert "| case | against | ours ms | theirs ms | times as fast | of peak | error |" in page
    for text in (result.stdout, page):
        assert "equal bits" in text
        assert "MiB" in text
        for word in ("MISSED", "Missed", "holds", "required"):
            assert word not in text


def test_speed_is_judged_at_full_size_and_a_missed_target_is_not_a_failure(monkeypatch):
    monkeypatch.setattr("heedful.bench.workload.AttentionWorkload.quick", lambda workload: workload)
    monkeypatch.setattr("heedful.bench.judging.SMALL_SECONDS", 0.0)
    monkeypatch.setattr("heedful.bench.run.FULL_BUDGET", QUICK_BUDGET)
    result = run(*TARGETS, "--case", "small-b1-t1-fp32", "--json")
    (case,) = json.loads(result.stdout)["cases"]
    assert result.exit_code == 0
    assert case["verdict"] in ("holds", "MISSED")
    assert case["requirements"][0]["required"] == "≥ 0.95 ×"


# --- wrong results -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda query, *_, **__: torch.zeros_like(query),
        lambda query, *_, **__: torch.full_like(query, torch.nan),
        lambda *tensors, **options: attention(*tensors, **options) * 1.001,
    ],
    ids=["zeros", "NaN", "a thousandth off"],
)
def test_a_wrong_kernel_is_not_timed_and_sets_the_exit_code(monkeypatch, wrong):
    monkeypatch.setattr(pytorch, "attention", wrong)
    result = run(*QUICK, "--case", "padded-fp32")
    assert result.exit_code == 1
    assert "padded-fp32: WRONG, therefore not timed" in result.stdout
    document = json.loads(run(*QUICK, "--case", "padded-fp32", "--json").stdout)
    assert document["right"] is False
    assert document["cases"][0]["verdict"] == "WRONG"
    assert document["cases"][0]["seconds"] == {}


def test_a_peer_that_computes_something_else_is_left_out(monkeypatch):
    zeros = Peer("textbook", lambda inputs: Contender(lambda: (inputs.query * 0,)))
    monkeypatch.setitem(registry.PEERS, "textbook", zeros)
    (case,) = document("--quick", "--peer", "textbook", "--case", "full-12x1024x64-bf16")["cases"]
    assert "differs from PyTorch's" in case["left_out"]["textbook"]
    assert set(case["seconds"]) == {"heedful", "sdpa"}


# --- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "nope"], "heedful bench --list"),
        (["--peer", "nope"], "onnxruntime"),
        (["--plot", "out.gif"], ".svg"),
        (["--page", "missing/page.md"], "--page"),
        (["--targets", "missing.toml"], "--targets"),
    ],
)
def test_an_unusable_option_gives_one_line(tmp_path, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_list_has_the_names_of_all_cases():
    listed = run("--list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == [case.name for case in CASES]


def test_a_missing_peer_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(contender, "find_spec", lambda name: None)
    result = run("--quick", "--peer", "jax", "--case", "causal-12x1024x64-bf16")
    assert result.exit_code == 0
    assert "jax is not installed: pip install 'heedful[bench]'" in result.stdout


def test_missing_matplotlib_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("--plot", "out.png")
    assert result.exit_code == 2
    assert "pip install 'heedful[pictures]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


# --- the plot ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "begins"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml")])
def test_the_suffix_determines_the_format_of_the_plot(tmp_path, monkeypatch, name, begins):
    measured = dict.fromkeys(plot.LABELS, (0.001, 2.0**20))
    monkeypatch.setattr(plot, "_measure", lambda workload: measured)
    result = run(*QUICK, "--case", "padded-fp32", "--plot", name)
    assert result.exit_code == 0
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(begins)
    assert begins != b"<?xml" or b"</svg>" in drawn
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_an_interruption_leaves_no_plot(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(plot, "_measure", interrupted)
    assert run(*QUICK, "--case", "padded-fp32", "--plot", "out.png").exit_code != 0
    assert list(tmp_path.iterdir()) == []
