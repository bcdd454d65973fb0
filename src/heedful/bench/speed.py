"""Cases that measure time: our attention is checked, then timed in turns with its peers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from torch import Tensor

from heedful.bench import accuracy
from heedful.bench.accuracy import AccuracyCheck
from heedful.bench.cases import BenchCase
from heedful.bench.conditions import BenchConditions
from heedful.bench.peers import OURS, PEERS, Peer
from heedful.bench.results import CaseResult
from heedful.bench.worker import Worker, WorkerError
from heedful.bench.workload import AttentionWorkload, WorkloadInputs, make_inputs
from heedful.kernels.native import library
from heedful.timing import Spread, TimedRun, Times, take_turns, time_runs

MAX_PEER_ERROR: float = 0.05  # a peer whose result differs more computes something else
BACKWARD_FACTOR: float = 3.5  # matrix products of both passes, for each of the forward pass


def measure_time(
    case: BenchCase, workload: AttentionWorkload, conditions: BenchConditions
) -> CaseResult:
    """Check our results, then time ours and the peers in turns. A wrong result is not timed.

    Args:
        case: The case.
        workload: The case's workload, or a smaller one.
        conditions: The conditions of the run.
    """
    inputs = make_inputs(workload)
    result = CaseResult(case, workload, inputs.kernel)
    reason = _missing_isa(case)
    if reason:
        return replace(result, not_measured=reason, left_out={case.ours: reason})
    with ExitStack() as workers:
        baseline = case.peers[0]
        our_run, our_results = _prepare(OURS[case.ours], workload, workers, case.isa)
        baseline_run, baseline_results = _prepare(PEERS[baseline], workload, workers, case.isa)
        checks = _check(case, inputs, our_results, baseline_results)
        result = replace(result, checks=checks)
        if not result.right:
            return result
        contenders = {case.ours: our_run, baseline: baseline_run}
        left_out = {}
        for name in case.peers[1:]:
            timed_run, reason = _prepare_peer(
                PEERS[name], workload, conditions, workers, baseline_results[0]
            )
            if timed_run is None:
                left_out[name] = reason
            else:
                contenders[name] = timed_run
        if case.probe_in_turn and case.peak in conditions.probes:
            contenders[case.peak] = conditions.probes[case.peak]
        times = take_turns(contenders, conditions.budget)
    return replace(
        result,
        times=times,
        share=_share_of_peak(case, inputs, times, conditions.peaks),
        peak=case.peak,
        left_out=left_out,
    )


def _missing_isa(case: BenchCase) -> str:
    """Return why the case's instruction set cannot be used, or ""."""
    if not case.isa:
        return ""
    if library.missing is not None:
        return library.missing
    return "" if case.isa in library.isas() else f"this machine has no {case.isa}"


def _prepare(
    peer: Peer, workload: AttentionWorkload, workers: ExitStack, isa: str = ""
) -> tuple[TimedRun, tuple[Tensor, ...]]:
    """Return a peer's timed run, here or in a process of its own, and its results."""
    if peer.separate_process or isa:
        worker = workers.enter_context(Worker(peer.name, workload, isa))
        return worker.seconds, worker.results()
    contender = peer.prepare(make_inputs(workload))
    return partial(time_runs, contender.run), accuracy.results_of(contender)


def _prepare_peer(
    peer: Peer,
    workload: AttentionWorkload,
    conditions: BenchConditions,
    workers: ExitStack,
    right: Tensor,
) -> tuple[TimedRun | None, str]:
    """Return a peer's timed run, or None and the reason why the peer cannot be compared."""
    if peer.name not in conditions.peers:
        return None, "it was not requested"
    reason = peer.missing or peer.refusal(workload)
    if reason:
        return None, reason
    try:
        timed_run, results = _prepare(peer, workload, workers)
    except WorkerError as error:
        return None, str(error)
    difference = accuracy.relative_error(results[0], right)
    if not difference <= MAX_PEER_ERROR:
        return None, f"its result differs from PyTorch's by {difference:.1e}"
    return timed_run, ""


def _check(
    case: BenchCase,
    inputs: WorkloadInputs,
    ours: tuple[Tensor, ...],
    baseline: tuple[Tensor, ...],
) -> tuple[AccuracyCheck, ...]:
    """Check our results. Those of PyTorch's own kernel with dropout cannot be checked, since its draws are not ours."""
    if case.ours == "heedful module":
        right = accuracy.module_reference(inputs)
        return (accuracy.check_whole(ours[0], right, baseline[0], inputs.workload.dtype),)
    if case.ours in ("summary", "received mass"):
        return accuracy.check_summary(inputs, ours)
    if inputs.workload.dropout_p > 0:
        if inputs.kernel == "torch_sdpa":
            return ()
        baseline = accuracy.dropout_baseline(inputs)
    return accuracy.check_heads(inputs, ours, baseline)


def _share_of_peak(
    case: BenchCase, inputs: WorkloadInputs, times: Times, peaks: dict[str, float]
) -> Spread | None:
    """Return the share of the peak that ours reaches, or None if the peak cannot be measured.

    The peak is the probe that took turns with ours if there was one, else the value measured before the first case.
    """
    if case.peak not in peaks:
        return None
    if case.peak == "read":
        amount = float(inputs.bytes_read)
    else:
        amount = inputs.flops * (BACKWARD_FACTOR if inputs.workload.backward else 1)
    if case.peak in times.seconds:
        ratio = times.ratio(case.peak, case.ours)
        return Spread(amount * ratio.median, amount * ratio.low, amount * ratio.high)
    seconds, least = times.spread(case.ours), amount / peaks[case.peak]
    return Spread(least / seconds.median, least / seconds.high, least / seconds.low)
