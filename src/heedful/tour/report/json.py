"""The report as one JSON document."""

import json
import math
from typing import Any

from torch import Tensor

import heedful
from heedful.observation import Step
from heedful.tour.comparison import Comparison
from heedful.tour.recordings import RecordedRun, RungResult, tensor_of
from heedful.tour.report.report import TourReport

MAX_VALUES: int = 4096  # larger tensors are summarised


def as_json(report: TourReport) -> str:
    """Return the whole report as JSON. Numbers that JSON cannot represent become "-inf", "inf" and "nan"."""
    document = {
        "heedful": heedful.__version__,
        "agrees": not report.disagreements,
        "tokens": {
            "origin": report.tokens.origin,
            "labels": report.tokens.labels,
            **_tensor(report.tokens.matrix),
        },
        "rungs": [
            {
                "name": rung.name,
                "title": rung.title,
                "meaning": rung.explanation,
                **_rung_result(result),
            }
            for rung, result in report.results
        ],
        "timing": {
            "setting": report.speed.workload,
            "dtype": report.speed.dtype,
            "threads": report.speed.threads,
            "kernel": report.speed.kernel,
            "runs": report.speed.runs,
            "median_seconds": report.speed.medians,
            "speedups": report.speed.speedups,
            "comparisons": [_comparison(comparison) for comparison in report.speed.comparisons],
        },
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)


def _rung_result(result: RungResult) -> dict[str, Any]:
    return {
        "walks": [
            {
                "title": run.title,
                "weights": {name: _tensor(value) for name, value in run.weights.items()},
                "steps": [_step(step, run) for step in run.steps],
            }
            for run in result.runs
        ],
        "comparisons": [_comparison(comparison) for comparison in result.comparisons],
        "findings": result.findings,
    }


def _step(step: Step, run: RecordedRun) -> dict[str, Any]:
    return {
        "name": step.name,
        "module": step.module,
        "meaning": run.descriptions[step.name].text,
        "operation": step.operation,
        "source": step.source,
        "line": step.line,
        **_tensor(tensor_of(step)),
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "quantity": comparison.quantity,
        "route": comparison.route,
        "against": comparison.against,
        "difference": _replace_non_finite(comparison.difference),
        "tolerance": comparison.tolerance,
        "agrees": comparison.agrees,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    """Return the shape and the values, or a summary of more than `MAX_VALUES` values."""
    if tensor.numel() <= MAX_VALUES:
        return {"shape": tuple(tensor.shape), "values": _replace_non_finite(tensor.tolist())}
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


def _replace_non_finite(value: Any) -> Any:
    """Replace infinities and NaN in nested lists of numbers by strings."""
    if isinstance(value, list):
        return [_replace_non_finite(entry) for entry in value]
    return value if math.isfinite(value) else str(value)
