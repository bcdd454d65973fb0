"""The speed of this machine on the same attention: step by step, by PyTorch's kernel, and by ours."""

import statistics
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from heedful.dispatch import explain
from heedful.functional import attention
from heedful.kernels.torch_sdpa import pytorch_sdpa
from heedful.masks import Causal
from heedful.textbook.causal import causal_mask
from heedful.textbook.simplified import weights_by_stable_softmax
from heedful.timing import Budget, iterate_turns, time_runs
from heedful.tour.comparison import Comparison, compare, rounding_tolerance

HEADS: int = 12  # a layer of GPT-2
TOKENS: int = 1024
HEAD_SIZE: int = 64
SECONDS: float = 2.0
MAX_TURNS: int = 20


@dataclass(frozen=True)
class SpeedComparison:
    """The times of all routes on one workload.

    Attributes:
        workload: The attention that all routes compute, in words.
        dtype: The dtype.
        threads: The number of threads.
        kernel: The kernel that `heedful.attention` chose.
        runs: The number of timed runs of each route, the textbook's first.
        medians: The median of each route's seconds.
        comparisons: The comparisons of the routes' results, made before the timing.
    """

    workload: str
    dtype: str
    threads: int
    kernel: str
    runs: dict[str, int]
    medians: dict[str, float]
    comparisons: tuple[Comparison, ...]

    @property
    def speedups(self) -> dict[str, float]:
        """The speed of each route, relative to the textbook's."""
        textbook, *_ = self.medians.values()
        return {route: textbook / seconds for route, seconds in self.medians.items()}


def textbook_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute causal attention step by step, softmax included: (B, H, T, D) → (B, H, T, D)."""
    scores = queries @ keys.mT
    scaled_scores = scores / queries.shape[-1] ** 0.5
    masked_scores = torch.where(causal_mask(queries.shape[-2]), scaled_scores, -torch.inf)
    weights = weights_by_stable_softmax(masked_scores)
    return weights @ values


def pytorch_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute causal attention with PyTorch's function: (B, H, T, D) → (B, H, T, D)."""
    return pytorch_sdpa(queries, keys, values, is_causal=True)


def heedful_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Compute causal attention with ours: (B, H, T, D) → (B, H, T, D)."""
    return torch.as_tensor(attention(queries, keys, values, Causal()))


def compare_speed() -> SpeedComparison:
    """Compare the results of all routes, then time the routes in turns for about `SECONDS`."""
    queries, keys, values = torch.randn(3, 1, HEADS, TOKENS, HEAD_SIZE)
    routes = {
        "textbook, softmax spelled out": textbook_attention,
        "PyTorch's scaled_dot_product_attention()": pytorch_attention,
        "heedful.attention()": heedful_attention,
    }
    results = {name: route(queries, keys, values) for name, route in routes.items()}
    comparisons = _compare_results(results, largest_value=values.abs().max().item())
    contenders = {
        name: partial(time_runs, partial(route, queries, keys, values))
        for name, route in routes.items()
    }
    turns = list(iterate_turns(contenders, Budget(SECONDS, min_turns=1, max_turns=MAX_TURNS)))
    return SpeedComparison(
        workload=f"causal attention, {HEADS} heads, {TOKENS} tokens, head size {HEAD_SIZE}",
        dtype=str(queries.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        kernel=explain(queries, keys, values, Causal()).kernel,
        runs=dict.fromkeys(routes, len(turns)),
        medians={name: statistics.median(seconds[name] for seconds in turns) for name in routes},
        comparisons=comparisons,
    )


def _compare_results(results: dict[str, Tensor], largest_value: float) -> tuple[Comparison, ...]:
    textbook, *others = results.items()
    # Scores of standard normal vectors, divided by √D, stay well below 10.
    tolerance = rounding_tolerance(HEAD_SIZE, score=10.0, value=largest_value)
    return tuple(compare("timed context", textbook, *others, tolerance=tolerance))
