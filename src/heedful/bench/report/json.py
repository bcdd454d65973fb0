"""The report as one JSON document."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import heedful
from heedful.bench.checking import Check
from heedful.bench.measuring import Spread
from heedful.bench.report import Report
from heedful.bench.running import Found


def as_json(report: Report) -> str:
    """Everything the report holds: seconds, units per second, ratios with their quartiles. No number: null."""
    document = {
        "heedful": heedful.__version__,
        "machine": asdict(report.machine),
        "peaks_per_second": report.limits,
        "quick": report.quick,
        "right": not report.wrong,
        "cases": [_case(found) for found in report.found],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)


def _case(found: Found) -> dict[str, Any]:
    return {
        "name": found.case.name,
        "group": found.case.group,
        "setting": asdict(found.setting),
        "isa": found.case.isa or None,
        "kernel": found.kernel,
        "verdict": found.verdict or None,
        "seconds": _seconds(found),
        "ratios": {peer: asdict(found.ratio(peer)) for peer in found.peers},
        "share": None if found.share is None else {"of": found.limit, **asdict(found.share)},
        "requirements": [
            {
                **asdict(judgement.requirement),
                "required": judgement.required,
                "measured": judgement.measured,
                "verdict": judgement.verdict,
            }
            for judgement in found.judgements
        ],
        "checks": [_check(check) for check in found.checks],
        "left_out": found.left_out,
    }


def _seconds(found: Found) -> dict[str, Any]:
    """The median of each contender's seconds with quartiles, and the number of turns."""
    if found.times is None:
        return {}
    names = (found.case.ours, *found.peers)
    spreads: dict[str, Spread] = {name: found.times.spread(name) for name in names}
    return {
        name: {**asdict(spread), "turns": found.times.turns} for name, spread in spreads.items()
    }


def _check(check: Check) -> dict[str, Any]:
    numbers = {
        name: it if isinstance(it, str) or math.isfinite(it) else None
        for name, it in asdict(check).items()
    }
    return {**numbers, "right": check.right}
