"""How fast this machine runs the same attention: spelled out, by PyTorch's kernel, and by ours."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.dispatch import explain
from heedful.functional import attention
from heedful.masks import Causal
from heedful.textbook.causal import causal_mask
from heedful.textbook.simplified import weights_by_stable_softmax
from heedful.tour.comparison import Comparison, compare, rounding

HEADS, TOKENS, HEAD_SIZE = 12, 1024, 64  # a layer of GPT-2
SECONDS = 2.0
MOST_TURNS = 20
FAST_PER_TURN = 4  # runs of each route but the textbook's, which takes as long as many of theirs


@dataclass(frozen=True)
class Timing:
    """What was timed, and how long it took.

    Attributes:
        setting: the attention that all routes compute, in words.
        dtype, threads: what they ran on.
        kernel: the one that `attention` took.
        runs: how often each route was timed, the textbook's first.
        medians: the median of each route's seconds.
        comparisons: whether the routes agree, found before any was timed.
    """

    setting: str
    dtype: str
    threads: int
    kernel: str
    runs: dict[str, int]
    medians: dict[str, float]
    comparisons: tuple[Comparison, ...]

    @property
    def speedups(self) -> dict[str, float]:
        """How many times as fast as the textbook each route is."""
        textbook, *_ = self.medians.values()
        return {route: textbook / seconds for route, seconds in self.medians.items()}


def textbook_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention with every step spelled out, the softmax too: (B, H, T, D) → (B, H, T, D)."""
    scores = queries @ keys.mT
    scaled_scores = scores / queries.shape[-1] ** 0.5
    masked_scores = torch.where(causal_mask(queries.shape[-2]), scaled_scores, -torch.inf)
    weights = weights_by_stable_softmax(masked_scores)
    return weights @ values


def pytorch_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


def heedful_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return torch.as_tensor(attention(queries, keys, values, Causal()))


def measure() -> Timing:
    """Check that the routes agree, then time them for about `SECONDS`, at least once each."""
    queries, keys, values = torch.randn(3, 1, HEADS, TOKENS, HEAD_SIZE)
    routes = {
        "textbook, softmax spelled out": textbook_attention,
        "PyTorch's scaled_dot_product_attention()": pytorch_attention,
        "heedful.attention()": heedful_attention,
    }
    results = {name: route(queries, keys, values) for name, route in routes.items()}
    comparisons = _agreement(results, largest_value=values.abs().max().item())
    times = _take_turns(routes, (queries, keys, values))
    return Timing(
        setting=f"causal attention, {HEADS} heads, {TOKENS} tokens, head size {HEAD_SIZE}",
        dtype=str(queries.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        kernel=explain(queries, keys, values, Causal()).kernel,
        runs={name: len(taken) for name, taken in times.items()},
        medians={name: statistics.median(taken) for name, taken in times.items()},
        comparisons=comparisons,
    )


def _agreement(results: dict[str, Tensor], largest_value: float) -> tuple[Comparison, ...]:
    textbook, *others = results.items()
    # Scores of standard normal vectors, divided by √D, stay well below 10.
    tolerance = rounding(HEAD_SIZE, score=10.0, value=largest_value)
    return tuple(compare("timed context", textbook, *others, tolerance=tolerance))


def _take_turns(
    routes: dict[str, Callable[..., Tensor]], inputs: tuple[Tensor, ...]
) -> dict[str, list[float]]:
    """Each route's times. They take turns, so that whatever else the machine does hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in routes}
    slow, *fast = routes
    end = time.perf_counter() + SECONDS
    for turn in range(MOST_TURNS):
        order = [slow]
        for repeat in range(FAST_PER_TURN):
            order += fast if (turn + repeat) % 2 else reversed(fast)
        for name in order:
            start = time.perf_counter()
            routes[name](*inputs)
            times[name].append(time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return times
