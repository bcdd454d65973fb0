"""Attention problems, each drawn from one integer."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzz.masks import MaskDrawer
from fuzz.memory import place
from heedful.masks import Causal, Dense

KERNELS = ["native"] * 8 + ["drop-in"] * 2 + ["auto", "online", "reference"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TILE_EDGES = [1, 7, 8, 9, 63, 64, 65, 127, 128, 129]
HEAD_SIZES = [1, 2, 3, 15, 16, 17, 32, 64, 65, 80, 128, 255, 256]


@dataclass
class Problem:
    """A call of `attention` with what the oracle needs beside it.

    Attributes:
        seed: what the problem was drawn from; the seed of torch's generator, too.
        kind: "plain"; or what is extreme, "huge query", "tiny scale", "huge value" or "low scores".
        arguments: the arguments of `attention`; the kernel "drop-in" is our `scaled_dot_product_attention`.
        shown: the mask in numpy; it broadcasts to (B, Hq, Tq, Tk).
        differentiated: the names of the tensors whose gradients are computed.
        grad_output: the gradient of the output.
        grad_lse: the gradient of the log-sum-exp; None if it is not requested.
    """

    seed: int
    kind: str
    arguments: dict[str, Any]
    shown: np.ndarray
    differentiated: list[str] = field(default_factory=list)
    grad_output: Tensor | None = None
    grad_lse: Tensor | None = None

    def __str__(self) -> str:
        parts = [self.kind]
        for name, value in self.arguments.items():
            if isinstance(value, Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                parts.append(f"{name} {dtype} {tuple(value.shape)} strides {value.stride()}")
            else:
                parts.append(f"{name} {value!r}")
        return ", ".join(parts) + f", gradients of {self.differentiated}"


def draw(seed: int) -> Problem:
    """Draw the problem of a seed, always the same."""
    rng = np.random.default_rng(seed)
    B, Hq, Hkv, Tq, Tk, D, Dv = _draw_sizes(rng)
    dtype = DTYPES[rng.integers(len(DTYPES))]
    kinds = ["plain", "huge query", "tiny scale", "huge value", "low scores"]
    kind = str(rng.choice(kinds, p=[0.8, 0.05, 0.05, 0.05, 0.05]))
    factors = _factors(kind, dtype)
    tensors = {
        name: place(rng, shape, dtype, _numbers(rng, factors.get(name, 1.0)))
        for name, shape in (
            ("query", (B, Hq, Tq, D)),
            ("key", (B, Hkv, Tk, D)),
            ("value", (B, Hkv, Tk, Dv)),
        )
    }
    if kind == "low scores" or rng.random() < 0.3:
        tensors["bias"] = _draw_bias(rng, (B, Hq, Tq, Tk), dtype, kind)
    if rng.random() < 0.25:
        sinks_dtype = dtype if rng.random() < 0.5 else torch.float32
        tensors["sinks"] = place(rng, (Hq,), sinks_dtype, _numbers(rng, 2.0))

    options: dict[str, Any] = {"kernel": str(rng.choice(KERNELS))}
    shown = np.ones((1, 1, Tq, Tk), dtype=bool)
    if rng.random() < 0.7:
        mask, shown = MaskDrawer(rng, B, Hq, Tq, Tk).mask()
        plain = isinstance(mask, Dense) and rng.random() < 0.5
        options["mask"] = mask.tensor if plain else mask
        if rng.random() < 0.5:
            _poison_unseen_keys(tensors["key"], tensors["value"], shown)
    options |= _draw_numbers(rng, kind, factors, D)
    problem = Problem(seed, kind, tensors | options, shown)
    _draw_gradients(rng, problem, (B, Hq, Tq, Dv), dtype)
    if options["kernel"] == "drop-in" and not _fits_drop_in(problem.arguments):
        problem.arguments["kernel"] = "auto"
    return problem


def _fits_drop_in(arguments: dict[str, Any]) -> bool:
    """Check whether PyTorch's signature has these arguments."""
    mask = arguments.get("mask")
    if {"softcap", "sinks", "return_lse"} & arguments.keys() or {
        "mask",
        "bias",
    } <= arguments.keys():
        return False
    if isinstance(mask, Causal):
        return mask.align == "start"
    return mask is None or isinstance(mask, Tensor)


def _normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.clip(rng.standard_normal(n), -3, 3)


def _numbers(rng: np.random.Generator, factor: float = 1.0) -> Callable[[int], np.ndarray]:
    return lambda n: factor * _normal(rng, n)


def _factors(kind: str, dtype: torch.dtype) -> dict[str, float]:
    """Return what query, key and value are multiplied by: sums of their products stay finite in float32."""
    wide = dtype != torch.float16
    return {
        "huge query": {"query": 1e38 if wide else 2e4},
        "tiny scale": {"query": 1e30 if wide else 1e4},
        "huge value": {"value": 1e30 if wide else 1e3},
    }.get(kind, {})


def _draw_sizes(rng: np.random.Generator) -> tuple[int, ...]:
    shape = rng.choice(["small", "tiles", "decoding"], p=[0.65, 0.2, 0.15])
    B, Hkv, group = (int(n) for n in rng.integers(1, 4, size=3))
    Tq, Tk = (int(n) for n in rng.integers(13, size=2))
    if shape == "tiles":
        B, Hkv, group = 1, 1, int(rng.integers(1, 3))
        Tq, Tk = (int(n) for n in rng.choice([*TILE_EDGES, *rng.integers(1, 150, 10)], size=2))
    elif shape == "decoding":
        Tq, Tk = int(rng.integers(1, 10)), int(rng.integers(1, 700))
    if shape != "decoding" and rng.random() < 0.5:
        Tk = Tq
    D = int(rng.choice([*HEAD_SIZES, *rng.integers(1, 257, size=4)]))
    Dv = D if rng.random() < 0.6 else int(rng.choice([*HEAD_SIZES, *rng.integers(1, 257, size=4)]))
    B, Hkv = (0 if rng.random() < 0.03 else n for n in (B, Hkv))
    return B, Hkv * group, Hkv, Tq, Tk, D, Dv


def _draw_bias(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, kind: str
) -> Tensor:
    """Draw numbers, some of them −∞ at times; if scores are to be low, numbers as low as the dtype has."""
    shape = tuple(n if rng.random() < 0.6 else 1 for n in shape)
    shape = shape[int(rng.integers(4)) if set(shape) == {1} else 0 :]
    dtype = dtype if rng.random() < 0.5 else torch.float32
    lowest = torch.finfo(dtype).min * (1.0 if rng.random() < 0.7 else 0.25)
    low = {"low scores": float(rng.choice([0.5, 1.0]))}.get(kind, 0.0)
    hidden = 0.2 if kind == "plain" and rng.random() < 0.2 else 0.0

    def numbers(n: int) -> np.ndarray:
        drawn = np.where(rng.random(n) < low, lowest, _normal(rng, n))
        return np.where(rng.random(n) < hidden, -math.inf, drawn)

    return place(rng, shape, dtype, numbers)


def _draw_numbers(
    rng: np.random.Generator, kind: str, factors: dict[str, float], D: int
) -> dict[str, Any]:
    """Draw scale, soft-cap and dropout."""
    options: dict[str, Any] = {}
    if kind == "huge query":
        options["scale"] = 0.0
    elif kind == "tiny scale":
        options["scale"] = 1 / factors["query"] / math.sqrt(D)
    elif rng.random() < 0.4:
        options["scale"] = float(rng.choice([0.0, -1.0, 0.3, 1.5])) / math.sqrt(D)
    if rng.random() < 0.25:
        options["softcap"] = float(rng.choice([0.5, 2.0, 30.0]))
    # PyTorch's kernel, which "auto" may choose, drops other weights.
    if rng.random() < 0.2:
        options["dropout_p"] = float(rng.choice([0.1, 0.5, 1.0]))
    return options


def _poison_unseen_keys(key: Tensor, value: Tensor, shown: np.ndarray) -> None:
    """Write NaN where no query of the batch entry sees a key, unless a key that is seen shares the memory."""
    B, _, Tk, _ = key.shape
    seen = torch.from_numpy(shown.any(axis=(1, 2)).copy()).expand(B, Tk)
    for tensor in (key, value):
        if torch._debug_has_internal_overlap(tensor) or not _is_dense(tensor):
            continue
        tensor.transpose(1, 2)[~seen] = math.nan


def _is_dense(tensor: Tensor) -> bool:
    """Check that no two elements share memory."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < extent:
            return False
        extent = max(extent, stride * (size - 1) + extent)
    return True


def _draw_gradients(
    rng: np.random.Generator, problem: Problem, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Draw which results are requested, and the gradients of the output and the log-sum-exp."""
    if rng.random() < 0.4:
        problem.arguments["return_lse"] = True
    if rng.random() < 0.4:
        return
    names = [name for name, value in problem.arguments.items() if _can_differentiate(name, value)]
    if rng.random() < 0.2:
        names = sorted(rng.choice(names, size=rng.integers(1, len(names) + 1), replace=False))
    problem.differentiated = [str(name) for name in names]
    problem.grad_output = place(rng, shape, dtype, _numbers(rng))
    if "return_lse" in problem.arguments:
        problem.grad_lse = place(rng, shape[:3], torch.float32, _numbers(rng))


def _can_differentiate(name: str, value: Any) -> bool:
    return isinstance(value, Tensor) and name != "mask"
