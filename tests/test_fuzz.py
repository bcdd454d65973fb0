"""The fuzzer of `make fuzz`: its problems agree with its oracle, and it notices errors, crashes and stray reads."""

import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from fuzz import comparison, problems, run, summaries
from heedful.kernels import native
from heedful.kernels.native import library
from heedful.summaries import summarize

pytestmark = pytest.mark.skipif(library.missing is not None, reason="needs the native kernel")
TESTS = str(Path(__file__).parent)
SEEDS = range(200)


@cache
def drawn(seed: int):
    problem = problems.draw(seed)
    return problem, comparison.exact(problem)


def found_in(seeds) -> list[str]:
    return [f"seed {seed}: {fault}" for seed in seeds for fault in comparison.faults(*drawn(seed))]


@cache
def asked(seed: int):
    request = summaries.draw(drawn(seed)[0])
    return drawn(seed)[0], request, summaries.exact(drawn(seed)[0], request)


def found_in_summaries(seeds) -> list[str]:
    return [f"seed {seed}: {fault}" for seed in seeds for fault in summaries.faults(*asked(seed))]


@pytest.fixture(params=[] if library.missing else library.isas())
def isa(request):
    before = library.isa
    library.use_isa(request.param)
    yield request.param
    library.use_isa(before)


def test_problems_agree_with_the_oracle(isa):
    assert found_in(SEEDS) == []


def test_summaries_agree_with_the_oracle(isa):
    assert found_in_summaries(SEEDS) == []


def test_a_seed_always_draws_the_same_problem():
    for seed in range(20):
        one, other = problems.draw(seed), problems.draw(seed)
        assert str(one) == str(other)
        for name in ("query", "key", "value"):
            tensors = one.arguments[name], other.arguments[name]
            torch.testing.assert_close(*tensors, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("planted", ["output", "lse"])
def test_a_planted_error_is_noticed(planted, monkeypatch):
    original = native.run

    def wrong(problem):
        output, lse = original(problem)
        if planted == "output":
            output = output.clone()
            output[-1:, -1:, -1:, -1:] += 0.5
        elif lse is not None:
            lse = lse + 0.5
        return output, lse

    seeds = [seed for seed in SEEDS if drawn(seed)[0].kind == "plain"]
    monkeypatch.setattr(native, "run", wrong)
    noticed = found_in(seeds)
    assert len(noticed) > 5
    assert all(f": {planted} is off by" in fault for fault in noticed)


NUMBERS = (
    *("lse", "mass", "entropy", "largest_weight", "mean_distance", "received_mass", "weights"),
    *("top_weights", "top_keys", "pooled_mean", "pooled_max"),
)


@pytest.mark.parametrize("planted", NUMBERS)
def test_an_error_planted_in_a_summary_is_noticed(planted, monkeypatch):
    def wrong(**arguments):
        summary = summarize(**arguments)
        value = getattr(summary, planted)
        if value is None:
            return summary
        value = value.clone()
        value.view(-1)[-1:] += 1
        return replace(summary, **{planted: value})

    seeds = [seed for seed in SEEDS if drawn(seed)[0].kind == "plain"]
    monkeypatch.setattr(summaries, "summarize", wrong)
    noticed = found_in_summaries(seeds)
    assert len(noticed) > 5
    said = (planted, "top_keys") if planted == "top_weights" else (planted,)
    assert all(any(f"summary: {name} " in fault for name in said) for fault in noticed)


@pytest.mark.parametrize(("at_end", "index"), [(True, "8"), (False, "-1")])
def test_a_read_beyond_a_tensor_ends_the_process(at_end, index):
    script = (
        "import ctypes, torch; from fuzz.memory import guarded\n"
        f"tensor = guarded(8, torch.float32, at_end={at_end})\n"
        "assert tensor.fill_(1.0).sum() == 8\n"
        f"ctypes.c_float.from_address(tensor.data_ptr() + 4 * {index}).value"
    )
    child = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": TESTS},
        check=False,
        capture_output=True,
    )
    assert child.returncode == -signal.SIGSEGV, child.stderr


def test_a_crash_is_reported_with_its_seed_and_the_run_goes_on_after_it(tmp_path, capsys):
    script = "print('at 7 avx2\\ndone 7\\nat 8 avx2', flush=True); import os; os.abort()"
    progress = run.Progress(7, [])
    run.watch([sys.executable, "-c", script], progress, position=tmp_path / "position")
    assert progress.next_seed == run.read_position(tmp_path / "position") == 9
    assert "seed 8 on avx2: the process ended with SIGABRT" in capsys.readouterr().out
    assert "--first 8 --last 8 --isas avx2" in progress.failures[0]


def test_a_child_that_cannot_start_is_an_error():
    with pytest.raises(RuntimeError, match="exit code 3 before its first problem"):
        run.watch([sys.executable, "-c", "raise SystemExit(3)"], run.Progress(0, []))


def test_the_command_says_what_it_did(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fuzz", "--first", "0", "--last", "2", "--isas", "generic"])
    monkeypatch.setenv("PYTHONPATH", TESTS)
    assert run.main() == 0
    assert "3 problems (seeds 0 to 2) on generic" in capsys.readouterr().out
