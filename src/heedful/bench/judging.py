"""Judging of results by the targets of their cases."""

from __future__ import annotations

from collections.abc import Sequence

from heedful.bench.results import CaseResult, Judgement
from heedful.bench.targets import BenchTarget
from heedful.kernels.native import library

# A call that SDPA finishes sooner is too short for a ratio: it is judged by the seconds that ours takes longer.
SMALL_SECONDS: float = 50e-6
MAX_ADDED_SECONDS: float = 6e-6


def judge(
    result: CaseResult, targets: Sequence[BenchTarget], *, quick: bool
) -> tuple[Judgement, ...]:
    """Judge a result by the targets of its case.

    Args:
        result: The result.
        targets: The targets.
        quick: Whether the workload is small. Its speed is not judged.
    """
    if result.not_measured:
        return tuple(Judgement(target, "", result.not_measured, None) for target in targets)
    return tuple(
        _judge(result, target)
        for target in targets
        if target.quantity in ("memory", "equal") or (result.times is not None and not quick)
    )


def _judge(result: CaseResult, target: BenchTarget) -> Judgement:
    match target.quantity:
        case "memory":
            return judge_memory(target, result.memory)
        case "equal":
            return judge_equality(target, result.thread_dependent)
        case "share":
            missing = library.missing or f"no instruction for {target.against}"
            if result.share is None or result.peak != target.against:
                return judge_share(target, None, missing)
            return judge_share(target, result.share.median)
    times = result.times
    if times is None or target.against not in times.seconds:
        missing = result.left_out.get(target.against, "it is not a peer of this case")
        return judge_ratio(target, None, missing)
    ours, theirs = times.median(result.case.ours), times.median(target.against)
    if target.quantity == "small":
        return judge_small(target, theirs, ours)
    return judge_ratio(target, theirs / ours)


def judge_ratio(target: BenchTarget, ratio: float | None, missing: str = "") -> Judgement:
    """Judge a ratio of times. None: it is missing for the given reason."""
    required = f"≥ {target.bound:g} ×"
    if ratio is None:
        return Judgement(target, required, missing, None)
    return Judgement(target, required, f"{ratio:.2f} ×", ratio >= target.bound)


def judge_share(target: BenchTarget, share: float | None, missing: str = "") -> Judgement:
    """Judge a share of a peak. None: it is missing for the given reason."""
    required = f"≥ {target.bound:.0%} of {target.against}"
    if share is None:
        return Judgement(target, required, missing, None)
    return Judgement(target, required, f"{share:.0%}", share >= target.bound)


def judge_small(target: BenchTarget, peer_seconds: float, our_seconds: float) -> Judgement:
    """Judge a small call by its ratio, or below `SMALL_SECONDS` by the seconds that ours takes longer."""
    if peer_seconds >= SMALL_SECONDS:
        return judge_ratio(target, peer_seconds / our_seconds)
    added = our_seconds - peer_seconds
    return Judgement(
        target,
        f"≤ +{MAX_ADDED_SECONDS * 1e6:.0f} µs",
        f"{added * 1e6:+.1f} µs",
        added <= MAX_ADDED_SECONDS,
    )


def judge_memory(target: BenchTarget, added: int | None) -> Judgement:
    """Judge the bytes that one call adds."""
    required = f"≤ {target.bound / 2**20:.0f} MiB"
    if added is None:
        return Judgement(target, required, "this case measures no memory", None)
    return Judgement(target, required, f"{added / 2**20:.0f} MiB", added <= target.bound)


def judge_equality(target: BenchTarget, thread_dependent: Sequence[str] | None) -> Judgement:
    """Judge by the names of the results that depend on the number of threads."""
    if thread_dependent is None:
        return Judgement(target, "equal bits", "this case compares no numbers of threads", None)
    measured = f"{', '.join(thread_dependent)} differ" if thread_dependent else "equal bits"
    return Judgement(target, "equal bits", measured, not thread_dependent)
