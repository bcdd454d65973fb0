"""Runs a problem with heedful and compares every result with the oracle's."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

import heedful
from fuzz import oracle
from fuzz.problems import Problem
from heedful.masks import Causal

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 8e-3}  # of test_agreement.py

# Sums of differences of products with value: if value is huge, only finiteness is required.
DIFFERENCES = [f"gradient of {name}" for name in ("query", "key", "bias", "sinks")]


def exact(problem: Problem) -> dict[str, np.ndarray]:
    """Return the results that heedful should give, from the oracle."""
    arguments, inputs = problem.arguments, inputs_of(problem)
    results = oracle.forward(inputs)
    if "return_lse" not in arguments:
        del results["lse"]
    if problem.differentiated:
        grads = oracle.backward(inputs, _wide(problem.grad_output), _wide(problem.grad_lse))
        results |= {f"gradient of {name}": grads[name] for name in problem.differentiated}
    return results


def inputs_of(problem: Problem) -> oracle.Inputs:
    """Return the problem as the oracle takes it."""
    arguments = problem.arguments
    return oracle.Inputs(
        **{name: _wide(arguments.get(name)) for name in ("query", "key", "value", "bias", "sinks")},
        shown=problem.shown,
        scale=arguments.get("scale", 1 / math.sqrt(arguments["query"].shape[3])),
        softcap=arguments.get("softcap"),
        dropout_p=arguments.get("dropout_p", 0.0),
        seed=_dropout_seed(problem),
    )


def computed(problem: Problem) -> dict[str, Tensor]:
    """Return heedful's results."""
    tensors = {name: problem.arguments[name] for name in problem.differentiated}
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    torch.manual_seed(problem.seed)
    result = _call(**(problem.arguments | leaves))
    results = (
        dict(zip(("output", "lse"), result, strict=True))
        if isinstance(result, tuple)
        else {"output": result}
    )
    if leaves:
        outputs = [(results["output"], problem.grad_output)]
        if "lse" in results and results["lse"].requires_grad:  # not if only value does
            outputs.append((results["lse"], problem.grad_lse))
        grads = torch.autograd.grad(
            [output for output, _ in outputs],
            list(leaves.values()),
            [grad for _, grad in outputs],
            materialize_grads=True,  # without keys, no result depends on query
        )
        results |= {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return results


def _call(**arguments: Any) -> Any:
    """Call `attention`, or the drop-in replacement of PyTorch's function."""
    if arguments["kernel"] != "drop-in":
        return heedful.attention(**arguments)
    mask = arguments.get("mask", arguments.get("bias"))
    causal = isinstance(mask, Causal)
    return heedful.scaled_dot_product_attention(
        *(arguments[name] for name in ("query", "key", "value")),
        attn_mask=None if causal else mask,
        dropout_p=arguments.get("dropout_p", 0.0),
        is_causal=causal,
        scale=arguments.get("scale"),
        enable_gqa=True,
    )


def faults(problem: Problem, expected: dict[str, np.ndarray]) -> list[str]:
    """Run the problem, and return what is wrong with the results, in words."""
    try:
        results = computed(problem)
    except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
        return [f"{type(error).__name__}: {error}".replace("\n", " ")]
    found = (_fault(problem, name, results[name], expected[name]) for name in expected)
    return [fault for fault in found if fault]


def _fault(problem: Problem, name: str, ours: Tensor, expected: np.ndarray) -> str | None:
    if ours.shape != expected.shape:
        return f"{name} has shape {tuple(ours.shape)}, not {expected.shape}"
    received = _wide(ours)
    if problem.kind == "huge value" and name in DIFFERENCES and np.isfinite(received).all():
        return None
    error = error_of(received, expected)
    size = float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0))
    if name in DIFFERENCES:
        size = max(size, _size_of_terms(problem, name))
    allowed = (TOLERANCE[problem.arguments["query"].dtype] + 4 * score_rounding(problem)) * size
    return f"{name} is off by {error:.2g}, allowed {allowed:.2g}" if error > allowed else None


def error_of(received: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference; infinite if NaN is anywhere."""
    with np.errstate(invalid="ignore"):
        error = np.where(received == expected, 0.0, np.abs(received - expected))
    return float(np.nan_to_num(error, nan=math.inf).max(initial=0.0))


def score_rounding(problem: Problem) -> float:
    """Return the rounding error of the largest score in float32: a weight is off by the same share of it."""
    query, key = (
        np.abs(np.nan_to_num(_wide(problem.arguments[name]))) for name in ("query", "key")
    )
    if not query.size or not key.size:
        return 0.0
    key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    scale = abs(problem.arguments.get("scale", 1 / math.sqrt(query.shape[3])))
    return float((query @ key.swapaxes(-1, -2)).max() * scale) * 2**-24


def _size_of_terms(problem: Problem, name: str) -> float:
    """Return the size of what a gradient is summed from, which may cancel; test_agreement.py has up to 12 channels."""
    size = max(1.0, (problem.arguments["value"].shape[3] / 12) ** 0.5)
    if name == "gradient of bias":  # a sum over rows, each with the rounding error of an output
        size *= max(1.0, math.prod(problem.arguments["query"].shape[:3]) ** 0.5 / 2)
    return size


def _dropout_seed(problem: Problem) -> int:
    """Return the seed that attention draws from torch's generator."""
    torch.manual_seed(problem.seed)
    return int(torch.randint(2**63 - 1, ()))


def _wide(tensor: Any) -> Any:
    return None if tensor is None else tensor.detach().double().numpy()
