"""The report as one JSON document."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import heedful
from heedful.bench.accuracy import AccuracyCheck
from heedful.bench.report.report import BenchReport
from heedful.bench.results import CaseResult


def as_json(report: BenchReport) -> str:
    """Return the whole report as JSON: seconds, units per second, ratios with their quartiles. NaN becomes null."""
    document = {
        "heedful": heedful.__version__,
        "machine": asdict(report.machine),
        "peaks_per_second": report.peaks,
        "quick": report.quick,
        "right": report.right,
        "cases": [_case(result) for result in report.results],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)


def _case(result: CaseResult) -> dict[str, Any]:
    share = None if result.share is None else {"of": result.peak, **asdict(result.share)}
    return {
        "name": result.case.name,
        "group": result.case.group,
        "setting": asdict(result.workload),
        "isa": result.case.isa or None,
        "kernel": result.kernel,
        "verdict": result.verdict or None,
        "seconds": _seconds(result),
        "ratios": {peer: asdict(result.ratio(peer)) for peer in result.peers},
        "share": share,
        "memory": result.memory,
        "thread_dependent": result.thread_dependent,
        "requirements": [
            {
                **asdict(judgement.target),
                "required": judgement.required,
                "measured": judgement.measured,
                "verdict": judgement.verdict,
            }
            for judgement in result.judgements
        ],
        "checks": [_check(check) for check in result.checks],
        "left_out": result.left_out,
    }


def _seconds(result: CaseResult) -> dict[str, Any]:
    """Return the median and quartiles of each contender's seconds, and the number of turns."""
    if result.times is None:
        return {}
    turns = result.times.turns
    return {
        name: {**asdict(result.times.spread(name)), "turns": turns}
        for name in (result.case.ours, *result.peers)
    }


def _check(check: AccuracyCheck) -> dict[str, Any]:
    fields = {
        name: entry if isinstance(entry, str) or math.isfinite(entry) else None
        for name, entry in asdict(check).items()
    }
    return {**fields, "right": check.right}
