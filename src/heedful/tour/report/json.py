"""The tour as one JSON document."""

import json
import math
from typing import Any

from torch import Tensor

import heedful
from heedful.observation import Step
from heedful.tour.comparison import Comparison
from heedful.tour.report import Report
from heedful.tour.walks import Climb, Walk, tensor_of

MOST_VALUES = 4096  # of a larger tensor, a summary


def as_json(report: Report) -> str:
    """Everything the report holds. What JSON has no number for is a string: "-inf", "inf", "nan"."""
    document = {
        "heedful": heedful.__version__,
        "agrees": not report.disagreements,
        "tokens": {
            "origin": report.tokens.origin,
            "labels": report.tokens.labels,
            **_tensor(report.tokens.matrix),
        },
        "rungs": [
            {"name": rung.name, "title": rung.title, "meaning": rung.meaning, **_climb(climb)}
            for rung, climb in report.climbs
        ],
        "timing": {
            "setting": report.timing.setting,
            "dtype": report.timing.dtype,
            "threads": report.timing.threads,
            "kernel": report.timing.kernel,
            "runs": report.timing.runs,
            "median_seconds": report.timing.medians,
            "speedups": report.timing.speedups,
            "comparisons": [_comparison(found) for found in report.timing.comparisons],
        },
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)


def _climb(climb: Climb) -> dict[str, Any]:
    return {
        "walks": [
            {"title": walk.title, "steps": [_step(step, walk) for step in walk.steps]}
            for walk in climb.walks
        ],
        "comparisons": [_comparison(found) for found in climb.comparisons],
        "findings": climb.findings,
    }


def _step(step: Step, walk: Walk) -> dict[str, Any]:
    return {
        "name": step.name,
        "module": step.module,
        "meaning": walk.meanings[step.name].text,
        "operation": step.operation,
        "source": step.source,
        "line": step.line,
        **_tensor(tensor_of(step)),
    }


def _comparison(found: Comparison) -> dict[str, Any]:
    return {
        "quantity": found.quantity,
        "route": found.route,
        "against": found.against,
        "difference": _plain(found.difference),
        "tolerance": found.tolerance,
        "agrees": found.agrees,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    """Shape and values; of a large tensor, shape and summary."""
    if tensor.numel() <= MOST_VALUES:
        return {"shape": tuple(tensor.shape), "values": _plain(tensor.tolist())}
    finite = tensor[tensor.isfinite()].double()
    return {
        "shape": tuple(tensor.shape),
        "summary": {
            "minimum": finite.min().item(),
            "maximum": finite.max().item(),
            "mean": finite.mean().item(),
            "not_finite": tensor.numel() - finite.numel(),
        },
    }


def _plain(value: Any) -> Any:
    """Nested lists of numbers without what JSON cannot hold."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return value if math.isfinite(value) else str(value)
