"""A run of the benchmark: every case is measured and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

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
from heedful.timing import Budget, Spread

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
    """Measure every case, and the machine's peaks before the first and after the last.

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
        results.append(run_case(case, conditions))
    announce("the machine's peaks")
    peaks = _highest_peaks((conditions.peaks, measure_peaks(probes)), results)
    results = [_with_peaks(result, conditions.peaks, peaks) for result in results]
    if targets is not None:
        results = [
            replace(result, judgements=judge(result, targets.of(result.case.name), quick=quick))
            for result in results
        ]
    return BenchReport(
        machine=this_machine(),
        peaks=peaks,
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


def _highest_peaks(
    measured: Sequence[dict[str, float]], results: Sequence[CaseResult]
) -> dict[str, float]:
    """Return the highest value of each peak: of those measured alone, and those in turns with a case."""
    all_seconds = [result.times.seconds for result in results if result.times is not None]
    in_turns = {
        name: [1 / min(seconds[name]) for seconds in all_seconds if name in seconds]
        for name in measured[0]
    }
    return {
        name: max([*(peaks[name] for peaks in measured), *found])
        for name, found in in_turns.items()
    }


def _with_peaks(
    result: CaseResult, before: dict[str, float], highest: dict[str, float]
) -> CaseResult:
    """Return a result with the share of the highest peak, unless its own peak took turns with it.

    A peak that was measured while something else ran would make the shares too high.
    """
    if result.share is None or result.times is None or result.peak in result.times.seconds:
        return result
    factor = before[result.peak] / highest[result.peak]
    return replace(result, share=Spread(*(factor * part for part in astuple(result.share))))
