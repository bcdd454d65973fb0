"""The first rung: attention by dot products of the tokens themselves, and softmax by several routes."""

import math

import torch
from torch import Tensor

from heedful.textbook import demonstrations, simplified
from heedful.tour.comparison import Comparison, compare, rounding_tolerance
from heedful.tour.inputs import Tokens
from heedful.tour.recordings import RungResult, largest_absolute, last_value, record_run
from heedful.tour.routes import HEEDFUL, heedful_context

MAX_LOOPED_TOKENS: int = 32  # nested loops over 512 tokens would take minutes


def simplified_attention(tokens: Tokens) -> RungResult:
    """Record attention of one token by loops and of all tokens by matrix products, and compare them."""
    x = tokens.matrix
    index = min(1, len(x) - 1)
    label = tokens.labels[index]
    one = record_run(
        f"One query, by loops: “{label}” attends to all tokens",
        simplified.attend_one,
        x,
        index,
        code=(
            simplified.attend_one,
            simplified.scores_of_one,
            simplified.weights_by_stable_softmax,
            simplified.context_of_one,
        ),
    )
    all_queries = record_run("All queries at once, by matrix products", simplified.attend, x)
    scores = last_value(all_queries.trace, "scores")
    context = last_value(all_queries.trace, "context")
    comparisons = [
        *_compare_loops(x),
        *_compare_softmaxes(scores, x.shape[1]),
        *compare(
            "context",
            ("matrix products", context),
            (HEEDFUL, heedful_context(x, x, x, scale=1.0)),
            tolerance=_tolerance(x),
        ),
        *compare(
            f"context of “{label}”",
            ("its row of the matrix product", context[index]),
            ("one query, by loops", last_value(one.trace, "context")),
            tolerance=_tolerance(x),
        ),
    ]
    findings = _raw_normalisation(scores), _naive_softmax(scores)
    return RungResult((one, all_queries), tuple(comparisons), findings)


def _compare_loops(x: Tensor) -> list[Comparison]:
    """Compare scores and context of the first tokens by nested loops with those by matrix products."""
    first = x[:MAX_LOOPED_TOKENS]
    loops = "nested loops" if len(first) == len(x) else f"nested loops, first {len(first)} tokens"
    return [
        *compare(
            "scores",
            ("one matrix product", simplified.scores_by_matmul(first)),
            (loops, simplified.scores_by_loops(first)),
            tolerance=_tolerance(x),
        ),
        *compare(
            "context",
            ("matrix products", simplified.attend(first)),
            (loops, simplified.attend_by_loops(first)),
            tolerance=_tolerance(x),
        ),
    ]


def _compare_softmaxes(scores: Tensor, d: int) -> list[Comparison]:
    """Compare the stable softmax with PyTorch's, and with the naive one on rows where that is accurate."""
    stable = simplified.weights_by_stable_softmax(scores)
    safe = _within_naive_range(scores)
    raised = _raise(scores)
    tolerance = rounding_tolerance(d, score=largest_absolute(scores))
    return [
        *compare(
            "weights",
            ("stable softmax", stable),
            ("torch.softmax", torch.softmax(scores, dim=-1)),
            tolerance=tolerance,
        ),
        *compare(
            "weights",
            ("stable softmax", stable[safe]),
            ("naive softmax, rows in its range", simplified.weights_by_naive_softmax(scores[safe])),
            tolerance=tolerance,
        ),
        *compare(
            "weights",
            ("stable softmax", stable),
            ("stable softmax of raised scores", simplified.weights_by_stable_softmax(raised)),
            tolerance=rounding_tolerance(1, score=largest_absolute(raised)),
        ),
    ]


def _naive_range(keys: int) -> tuple[float, float]:
    """Return the range of a row's largest score in which the naive softmax neither underflows nor overflows."""
    lowest = math.log(torch.finfo(torch.float32).tiny)
    return lowest, demonstrations.range_of_naive_softmax(torch.float32, keys=keys).highest


def _within_naive_range(scores: Tensor) -> Tensor:
    """Return for each row whether the naive softmax is accurate: (T, T) → (T,)."""
    lowest, highest = _naive_range(scores.shape[-1])
    row_largest = scores.amax(dim=-1)
    return (row_largest > lowest) & (row_largest < highest)


def _raise(scores: Tensor) -> Tensor:
    """Add the same number to all scores, which changes no weight, so that their exponentials overflow."""
    return scores - scores.min() + 100


def _naive_softmax(scores: Tensor) -> str:
    """Describe where the naive softmax fails."""
    lowest, highest = _naive_range(scores.shape[-1])
    safe = _within_naive_range(scores)
    raised = _raise(scores)
    lost = simplified.weights_by_naive_softmax(raised).isnan().sum().item()
    kept = simplified.weights_by_stable_softmax(raised).isfinite().sum().item()
    return (
        f"The naive softmax needs the largest score of each row to be between {lowest:.1f} and {highest:.1f}, because "
        f"exp leaves the range of float32 outside; {int(safe.sum())} of {len(safe)} rows qualify. If all scores are "
        "raised so that the smallest is 100, which should change nothing, the naive softmax gives NaN in "
        f"{lost} of {raised.numel()} entries, and the stable softmax gives finite numbers in {kept}."
    )


def _raw_normalisation(scores: Tensor) -> str:
    """Describe how division by the sum differs from softmax."""
    raw = simplified.weights_by_sum(scores)
    difference = largest_absolute(raw - torch.softmax(scores, dim=-1))
    return (
        "Dividing the scores by their sum also makes rows add up to 1, but it is a different function: its weights "
        f"differ from those of softmax by up to {difference:.3g}, and the smallest is {raw.min().item():.3g}. A "
        "negative score would give a negative weight."
    )


def _tolerance(x: Tensor) -> float:
    """Return the tolerance for scores and contexts of the tokens themselves.

    No score is larger than that of the longest token with itself.
    """
    score = largest_absolute(x.square().sum(dim=-1))
    return rounding_tolerance(x.shape[1], score=score, value=max(largest_absolute(x), 1.0))
