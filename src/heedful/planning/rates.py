"""How fast attention is computed on this machine, measured for predictions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from heedful.bench.peaks import available_peaks, measure_peaks
from heedful.functional import attention
from heedful.masks import Causal
from heedful.parallel import AttentionSizes, Rate

T = TypeVar("T")

TOKENS: int = 4096
HEADS: int = 2
RUNS: int = 5


def measure_rate(sizes: AttentionSizes, dtype: torch.dtype, tokens: int = TOKENS) -> Rate:
    """Measure how fast causal attention is computed here, on the threads of torch.

    Args:
        sizes: the head sizes.
        dtype: the dtype to compute in.
        tokens: how many tokens there are.

    Returns:
        The median rates.
    """
    shape = 1, HEADS, tokens
    query, key = (torch.randn(*shape, sizes.head_size).to(dtype) for _ in range(2))
    value, towards = (torch.randn(*shape, sizes.value_size).to(dtype) for _ in range(2))
    leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
    pairs = HEADS * tokens * (tokens + 1) // 2

    def forward() -> Tensor:
        output = attention(query, key, value, Causal())
        assert isinstance(output, Tensor)  # the log-sum-exp is not requested
        return output

    torch.autograd.grad(forward(), leaves, towards)  # warms up
    forwards: list[float] = []
    backwards: list[float] = []
    for _ in range(RUNS):
        output, seconds = _timed(forward)
        forwards.append(seconds)
        _, seconds = _timed(partial(torch.autograd.grad, output, leaves, towards))
        backwards.append(seconds)
    D, Dv = sizes.head_size, sizes.value_size
    return Rate(
        2 * (D + Dv) * pairs / statistics.median(forwards),
        2 * (3 * D + 2 * Dv) * pairs / statistics.median(backwards),
    )


def measured_peak() -> float | None:
    """Return the peak of float32 on this machine, in FLOP/s; None if it cannot be measured."""
    probes = available_peaks()
    return measure_peaks({"fma": probes["fma"]})["fma"] if "fma" in probes else None


def _timed(run: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start
