"""The project's own targets, how they are read, and how results are judged by them."""

import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from heedful.bench import judging
from heedful.bench.cases import CASES
from heedful.bench.report.rows import faults
from heedful.bench.results import CaseResult
from heedful.bench.targets import BenchTarget, BenchTargets
from heedful.errors import ArgumentError

TARGETS = BenchTargets.read(Path(__file__).parents[2] / "benchmarks" / "targets.toml")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "full-12x4096x64-fp32",
            [
                ("speed", "sdpa", 0.95),
                ("speed", "openvino", 0.95),
                ("speed", "zentorch", 0.95),
                ("share", "fma", 0.92),
            ],
        ),
        ("causal-12x1024x64-fp16", [("speed", "sdpa", 0.95)]),
        ("peak-bf16", [("share", "bf16", 0.72)]),
        (
            "window-bf16",
            [("speed", "sdpa", 0.95), ("speed", "flex", 0.95), ("share", "bf16", 0.68)],
        ),
        ("decode-b8-bf16", [("speed", "sdpa", 0.95), ("share", "read", 0.80)]),
        ("training-fp32", [("speed", "sdpa", 0.95), ("share", "fma", 0.86)]),
        ("padded-bf16", [("speed", "sdpa", 0.95), ("share", "bf16", 0.76)]),
        ("avx2-causal-fp32", [("speed", "sdpa", 0.95)]),
        ("memory-fp32", [("memory", "", 64 * 2**20)]),
        ("threads-bf16", [("equal", "", 0.0)]),
    ],
)
def test_the_projects_targets_are_read(name, expected):
    targets = [(target.quantity, target.against, target.bound) for target in TARGETS.of(name)]
    assert targets == expected


def test_every_target_belongs_to_a_case_that_measures_it():
    for pattern, targets in TARGETS.by_pattern.items():
        cases = [case for case in CASES if fnmatchcase(case.name, pattern)]
        assert cases, pattern
        for case in cases:
            for target in targets:
                if target.quantity == "share":
                    assert case.peak == target.against
                elif target.quantity in ("speed", "small"):
                    assert target.against in case.peers
                else:
                    assert (
                        case.measures == {"memory": "memory", "equal": "threads"}[target.quantity]
                    )


@pytest.mark.parametrize(
    "text",
    [
        "[decode-*",
        "speed = 2",
        "[a]\nspeed = 2",
        "[a]\nspede = { sdpa = 2 }",
        "[a]\nequal = false",
        "[a]\nmemory = true",
        "[a]\nreason = 3\nmemory = 5",
    ],
)
def test_unusable_targets_are_refused(tmp_path, text):
    path = tmp_path / "targets.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="--targets"):
        BenchTargets.read(path)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 5000, "a = '\xff'"])
def test_hostile_targets_are_refused(tmp_path, text):
    path = tmp_path / "targets.toml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ArgumentError, match="--targets"):
        BenchTargets.read(path)


@pytest.mark.parametrize("bound", ["nan", "inf", "true", "'2'", "[2]", "1" + "0" * 400])
def test_bounds_that_are_no_numbers_are_refused(tmp_path, bound):
    path = tmp_path / "targets.toml"
    path.write_text(f"[a]\nspeed = {{ sdpa = {bound} }}")
    with pytest.raises(ArgumentError, match="--targets"):
        BenchTargets.read(path)


def test_targets_that_are_no_regular_file_are_refused_at_once(tmp_path):
    path = tmp_path / "targets.toml"
    os.mkfifo(path)
    with pytest.raises(ArgumentError, match="Not a regular file"):
        BenchTargets.read(path)


def test_a_missed_target_is_reported_with_its_reason(tmp_path):
    path = tmp_path / "targets.toml"
    path.write_text("[memory-fp32]\nmemory = 1\nreason = 'The softmax waits for the products.'")
    (target,) = BenchTargets.read(path).of("memory-fp32")
    (case,) = [case for case in CASES if case.name == "memory-fp32"]
    result = CaseResult(case, case.workload, "", judgements=(judging.judge_memory(target, 2**20),))
    (fault,) = faults(result)
    assert fault.endswith("; required: ≤ 0 MiB. Reason: The softmax waits for the products.")


def test_judgements_compare_with_the_bound():
    speed, small = BenchTarget("speed", 2.0, "sdpa"), BenchTarget("small", 0.95, "sdpa")
    assert judging.judge_ratio(speed, 2.0).verdict == "holds"
    assert judging.judge_ratio(speed, 1.99).verdict == "MISSED"
    assert judging.judge_ratio(speed, None, "absent").verdict == "not measured"
    assert judging.judge_small(small, 60e-6, 65e-6).verdict == "MISSED"  # 0.92 of its speed
    assert judging.judge_small(small, 3e-6, 8e-6).verdict == "holds"  # 5 µs more
    assert judging.judge_small(small, 3e-6, 10e-6).measured == "+7.0 µs"
    assert judging.judge_small(small, 3e-6, 10e-6).verdict == "MISSED"
    memory = BenchTarget("memory", 64 * 2**20)
    assert judging.judge_memory(memory, 65 * 2**20).verdict == "MISSED"
    assert judging.judge_equality(BenchTarget("equal"), ["output"]).verdict == "MISSED"
