"""Summaries of the weights of a drawn problem, each statistic compared with the oracle's dense weights in float64."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuzz import oracle
from fuzz.comparison import TOLERANCE, error_of, inputs_of, score_rounding
from fuzz.masks import MaskDrawer
from fuzz.problems import Problem
from heedful.masks import Mask
from heedful.summaries import Summary, summarize

ARGUMENTS = ("query", "key", "mask", "bias", "scale", "softcap", "sinks")
LARGEST_POOL = 15


@dataclass
class Request:
    """What a summary is asked for.

    Attributes:
        options: the options of `summarize`.
        regions: for each region, the keys that it has, in numpy; it broadcasts to (B, Hq, Tq, Tk).
    """

    options: dict[str, Any]
    regions: dict[str, np.ndarray]


def draw(problem: Problem) -> Request:
    """Draw what to ask of the weights of a problem, always the same for its seed."""
    rng = np.random.default_rng((problem.seed, 1))
    B, Hq, Tq, _ = problem.arguments["query"].shape
    Tk = problem.arguments["key"].shape[2]
    options: dict[str, Any] = {
        "for_each_query": bool(rng.random() < 0.8),
        "for_each_key": bool(rng.random() < 0.8),
        "top_k": int(rng.choice([0, 1, 3, 8, Tk, Tk + 2])),
    }
    if rng.random() < 0.6:
        sides = [int(it) for it in rng.integers(1, LARGEST_POOL + 1, size=2)]
        options["pool"] = sides[0] if rng.random() < 0.5 else tuple(sides)
    if Tq and rng.random() < 0.4:
        options["rows"] = [int(it) for it in rng.integers(Tq, size=int(rng.integers(1, 4)))]
        if rng.random() < 0.5 and problem.kind != "low scores":  # float32 rounds their log-sum-exp
            options["columns"] = _draw_span(rng, Tk)
    drawer, regions, shown = MaskDrawer(rng, B, Hq, Tq, Tk), {}, {}
    for name in "abc"[: int(rng.integers(4))]:
        span = _draw_span(rng, Tk)
        j = np.arange(Tk)
        regions[name], shown[name] = span, (span[0] <= j) & (j < span[1])
        mask, seen = drawer.mask()
        if rng.random() < 0.6 and mask.intervals(Tq, Tk, batch=B) is not None:
            regions[name], shown[name] = mask, seen
    return Request(options | {"regions": regions}, shown)


def _draw_span(rng: np.random.Generator, Tk: int) -> tuple[int, int]:
    first, last = sorted(int(it) for it in rng.integers(Tk + 1, size=2))
    return first, last


def exact(problem: Problem, request: Request) -> dict[str, np.ndarray]:
    """Return what the weights give by definition, and the weights themselves."""
    weights, lse = oracle.dense_weights(inputs_of(problem))
    Tq, Tk = weights.shape[2:]
    mask, options = problem.arguments.get("mask"), request.options
    shift = Tk - Tq if isinstance(mask, Mask) and mask.align == "end" else 0
    distance = np.abs(np.arange(Tq)[:, None] + shift - np.arange(Tk))
    mass = weights.sum(-1)
    logarithms = np.log(np.where(weights > 0, weights, 1.0))
    found = {"all weights": weights, "lse": lse}
    if options["for_each_query"]:
        found |= {
            "mass": mass,
            "entropy": -(weights * logarithms).sum(-1),
            "largest_weight": weights.max(-1, initial=0.0),
            "mean_distance": (weights * distance).sum(-1) / np.where(mass == 0, 1.0, mass),
        }
    if options["for_each_key"]:
        found["received_mass"] = weights.sum(2)
    for name, shown in request.regions.items():
        found[f"mass of {name}"] = (weights * shown).sum(-1)
    if options["top_k"]:
        ranked = -np.sort(-weights, axis=-1)[..., : options["top_k"]]
        missing = options["top_k"] - ranked.shape[-1]
        found["top_weights"] = np.pad(ranked, [(0, 0)] * 3 + [(0, missing)])
    if "rows" in options:
        first, last = options.get("columns", (0, Tk))
        found["weights"] = weights[:, :, options["rows"], first:last]
    return found


def faults(problem: Problem, request: Request, expected: dict[str, np.ndarray]) -> list[str]:
    """Summarize the problem, and return what is wrong with the statistics, in words."""
    arguments = {name: problem.arguments.get(name) for name in ARGUMENTS}
    try:
        summary = summarize(**arguments, **request.options)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return [f"summarize: {type(error).__name__}: {error}".replace("\n", " ")]
    weights = expected["all weights"]
    Tq, Tk = weights.shape[2:]
    sizes = {"entropy": 10.0, "mean_distance": Tq + Tk, "received_mass": max(1, Tq)}
    # Low scores of float16 are rounded when they are added to others; those of wider types swallow the others.
    low = problem.kind == "low scores"
    dtype = problem.arguments["query"].dtype if low else torch.float32
    share = TOLERANCE[dtype] + 4 * score_rounding(problem)
    found = []
    for name, value in {**_results(summary), **_cells(summary, weights)}.items():
        ours, right = value if isinstance(value, tuple) else (value, expected.get(name))
        if (ours is None) != (right is None):
            found.append(f"summary: {name} is {'missing' if ours is None else 'there, unasked'}")
        elif ours is not None and ours.shape != right.shape:
            found.append(f"summary: {name} has shape {ours.shape}, not {right.shape}")
        elif ours is not None:
            size = sizes.get(name, float(np.abs(right[np.isfinite(right)]).max(initial=1.0)))
            error, allowed = error_of(ours, right), share * size
            if error > allowed:
                found.append(f"summary: {name} is off by {error:.2g}, allowed {allowed:.2g}")
    return found + _faults_of_keys(summary, weights, share)


def _results(summary: Summary) -> dict[str, np.ndarray | None]:
    names = ("lse", "mass", "entropy", "largest_weight", "mean_distance", "received_mass")
    found = {name: getattr(summary, name) for name in (*names, "top_weights", "weights")}
    found |= {f"mass of {name}": mass for name, mass in summary.region_mass.items()}
    return {name: None if it is None else it.double().numpy() for name, it in found.items()}


def _cells(summary: Summary, weights: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return mean and maximum of the cells beside those of the dense weights."""
    if summary.pooled_mean is None or summary.pooled_max is None or summary.cell is None:
        return {}
    edges = [np.arange(0, n, size) for n, size in zip(weights.shape[2:], summary.cell, strict=True)]
    rows, columns = (np.diff([*it, n]) for it, n in zip(edges, weights.shape[2:], strict=True))
    if not len(rows) or not len(columns):
        return {}
    sums = np.add.reduceat(np.add.reduceat(weights, edges[0], 2), edges[1], 3)
    largest = np.maximum.reduceat(np.maximum.reduceat(weights, edges[0], 2), edges[1], 3)
    mean, maximum = (it.double().numpy() for it in (summary.pooled_mean, summary.pooled_max))
    return {"pooled_mean": (mean, sums / np.outer(rows, columns)), "pooled_max": (maximum, largest)}


def _faults_of_keys(summary: Summary, weights: np.ndarray, share: float) -> list[str]:
    """Return what is wrong with the listed keys: each has the listed weight, and none is there twice."""
    if summary.top_keys is None or summary.top_weights is None or not weights.shape[3]:
        return []
    keys = summary.top_keys.numpy()
    Tk = weights.shape[3]
    if (keys < -1).any() or (keys >= Tk).any():
        return [f"summary: top_keys has a key that is none of {Tk}"]
    held = np.where(keys < 0, 0.0, np.take_along_axis(weights, np.maximum(keys, 0), -1))
    found = []
    if error_of(summary.top_weights.double().numpy(), held) > share:
        found.append("summary: top_keys have other weights")
    numbered = np.sort(np.where(keys < 0, -1 - np.arange(keys.shape[-1]), keys), axis=-1)
    if (np.diff(numbered, axis=-1) == 0).any():
        found.append("summary: top_keys has a key twice")
    return found
