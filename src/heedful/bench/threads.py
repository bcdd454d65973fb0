"""Cases that compare results on several numbers of threads."""

from __future__ import annotations

import torch

from heedful.bench import accuracy
from heedful.bench.cases import BenchCase
from heedful.bench.peers import OURS, PEERS
from heedful.bench.results import CaseResult
from heedful.bench.workload import AttentionWorkload, make_inputs

THREADS: tuple[int, ...] = (1, 2, 4)


def compare_threads(case: BenchCase, workload: AttentionWorkload) -> CaseResult:
    """Find the results that differ in any bit between numbers of threads.

    Args:
        case: The case.
        workload: The case's workload, or a smaller one.
    """
    inputs = make_inputs(workload)
    contender = OURS[case.ours].prepare(inputs)
    before, results = torch.get_num_threads(), []
    try:
        for threads in THREADS:
            torch.set_num_threads(threads)
            results.append(accuracy.results_of(contender))
    finally:
        torch.set_num_threads(before)
    thread_dependent = [
        name
        for name, *versions in zip(accuracy.NAMES, *results, strict=False)
        if not all(torch.equal(versions[0], version) for version in versions)
    ]
    baseline = accuracy.results_of(PEERS["sdpa"].prepare(inputs))
    return CaseResult(
        case,
        workload,
        inputs.kernel,
        checks=accuracy.check_heads(inputs, results[0], baseline),
        thread_dependent=tuple(thread_dependent),
    )
