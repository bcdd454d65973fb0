"""Every case of `heedful bench` that one process can time, under pytest-benchmark: ours against ours of an earlier day.

pip install 'heedful[bench]'
pytest benchmarks -k decode                         # saves what it measures
pytest benchmarks -k decode --benchmark-compare     # compares with the last one saved
"""

import pytest

from heedful.bench.cases import CASES
from heedful.bench.peers import OURS
from heedful.bench.settings import make

TIMED = [case for case in CASES if case.peers and not case.isa]


@pytest.mark.parametrize("case", TIMED, ids=lambda case: case.name)
def test_ours(benchmark, case):
    contender = OURS[case.ours].prepare(make(case.setting))
    benchmark.group = case.group
    benchmark(contender.run)
