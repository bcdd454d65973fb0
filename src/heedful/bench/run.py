"""A run of the benchmark: every case is measured and judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from heedful.bench.cases import BenchCase
from heedful.bench.conditions import BenchConditions
from heedful.bench.judging import judge
from heedful.bench.machine import this_machine
from heedful.bench.memory import measure_memory
from heedful.bench.models import measure_model
from heedful.bench.peaks import READ_BYTES, available_peaks, measure_peaks
from heedful.bench.report import BenchReport
from heedful.bench.results import CaseResult
from heedful.bench.speed import measure_time
from heedful.bench.targets import BenchTargets
from heedful.bench.threads import compare_threads
from heedful.bench.workload import ModelWorkload
from heedful.timing import Budget

FULL_BUDGET: Budget = Budget(seconds=3.0, min_turns=5)
QUICK_BUDGET: Budget = Budget(seconds=0.02, min_turns=3)
QUICK_READ_BYTES: int = 2**20


def run_cases(
    cases: tuple[BenchCase, ...],
    peers: tuple[str, ...],
    targets: BenchTargets | None = None,
    *,
    quick: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Measure the machine's peaks, then every case.

    Args:
        cases: Some of `cases.CASES`.
        peers: Names in `peers.PEERS`. Each case is compared with those of its peers that are among them.
        targets: What the cases should reach. None: the results are not judged.
        quick: Use small workloads and few turns. Speed is not judged.
        announce: Called with the name of each stage as it begins.

    Returns:
        The report of all cases.
    """
    announce("the machine's peaks")
    probes = available_peaks(QUICK_READ_BYTES if quick else READ_BYTES)
    conditions = BenchConditions(
        peers=peers,
        budget=QUICK_BUDGET if quick else FULL_BUDGET,
        probes=probes,
        peaks=measure_peaks(probes),
        quick=quick,
    )
    results = []
    for case in cases:
        announce(case.name)
        result = run_case(case, conditions)
        if targets is not None:
            judgements = judge(result, targets.of(case.name), quick=quick)
            result = replace(result, judgements=judgements)
        results.append(result)
    return BenchReport(
        machine=this_machine(),
        peaks=_highest_peaks(conditions.peaks, results),
        results=tuple(results),
        judged=targets is not None,
        quick=quick,
    )


def run_case(case: BenchCase, conditions: BenchConditions) -> CaseResult:
    """Measure a case."""
    workload = case.workload.quick() if conditions.quick else case.workload
    if isinstance(workload, ModelWorkload):
        return measure_model(case, workload, conditions)
    match case.measures:
        case "memory":
            return measure_memory(case, workload)
        case "threads":
            return compare_threads(case, workload)
        case "time":
            return measure_time(case, workload, conditions)


def _highest_peaks(peaks: dict[str, float], results: list[CaseResult]) -> dict[str, float]:
    """Return the highest value of each peak: of those before the first case, and those in turns with a case."""
    all_seconds = [result.times.seconds for result in results if result.times is not None]
    return {
        name: max([peak, *(1 / min(seconds[name]) for seconds in all_seconds if name in seconds)])
        for name, peak in peaks.items()
    }
