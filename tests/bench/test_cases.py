"""The table: every number that must be reached stands in it."""

import pytest

from heedful.bench import judging
from heedful.bench.cases import CASES, Requirement, choose
from heedful.bench.settings import DTYPES, make
from heedful.errors import ArgumentError

BY_NAME = {case.name: case for case in CASES}


def required(name: str) -> list[tuple[str, str, float]]:
    return [(it.quantity, it.against, it.bound) for it in BY_NAME[name].requirements]


def test_names_are_unique_and_end_in_their_dtype():
    assert len(BY_NAME) == len(CASES)
    assert all(case.name.rpartition("-")[2] == case.setting.dtype for case in CASES)
    assert {case.setting.dtype for case in CASES} == set(DTYPES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("full-12x4096x64-fp32", [("speed", "sdpa", 2.2), ("speed", "openvino", 1.15)]),
        ("causal-8x2048x128-bf16", [("speed", "sdpa", 4.5), ("speed", "openvino", 2.0)]),
        ("causal-12x1024x64-fp16", [("speed", "sdpa", 2.0)]),
        ("peak-fp32", [("share", "fma", 0.80)]),
        ("peak-bf16", [("share", "bf16", 0.72)]),
        ("window-bf16", [("speed", "sdpa", 30), ("speed", "flex", 4)]),
        ("decode-b8-bf16", [("speed", "sdpa", 25), ("share", "read", 0.75)]),
        ("training-fp32", [("speed", "sdpa", 2.5)]),
        ("dropout-bf16", [("speed", "sdpa", 8)]),
        ("padded-bf16", [("speed", "sdpa", 6)]),
        ("avx2-causal-fp32", [("speed", "sdpa", 1.0)]),
        ("memory-fp32", [("memory", "", 64 * 2**20)]),
        ("threads-bf16", [("equal", "", 0.0)]),
    ],
)
def test_the_table_says_what_must_be_reached(name, expected):
    assert required(name) == expected


def test_a_name_stands_for_all_that_begin_so():
    assert [case.name for case in choose(["padded-bf16"])] == ["padded-bf16"]
    assert [case.name for case in choose(["padded", "peak-fp32"])] == [
        "peak-fp32",
        "padded-fp32",
        "padded-bf16",
    ]
    assert choose([]) == CASES
    with pytest.raises(ArgumentError, match="window"):
        choose(["pad"])


def test_inputs_are_the_same_in_every_process_and_of_the_setting():
    setting = BY_NAME["decode-b8-bf16"].setting.quick()
    first, second = make(setting), make(setting)
    assert first.query.equal(second.query)
    assert first.query.shape == (2, 32, 1, 128)
    assert first.key.shape == (2, 8, 128, 128)
    assert first.flops == 4 * 128 * 2 * 32 * 128
    assert first.bytes_read == 2 * first.key.numel() * 2


def test_judgements_compare_with_the_bound():
    speed, small = Requirement("speed", 2.0, "sdpa"), Requirement("small", 0.95, "sdpa")
    assert judging.ratio(speed, 2.0).verdict == "holds"
    assert judging.ratio(speed, 1.99).verdict == "MISSED"
    assert judging.ratio(speed, None, "absent").verdict == "not measured"
    assert judging.small(small, 60e-6, 65e-6).verdict == "MISSED"  # 0.92 of its speed
    assert judging.small(small, 3e-6, 14e-6).verdict == "holds"  # 11 µs more
    assert judging.small(small, 3e-6, 16e-6).measured == "+13.0 µs"
    assert judging.small(small, 3e-6, 16e-6).verdict == "MISSED"
    memory = Requirement("memory", 64 * 2**20)
    assert judging.memory(memory, 65 * 2**20).verdict == "MISSED"
    assert judging.equal(Requirement("equal"), ["output"]).verdict == "MISSED"
