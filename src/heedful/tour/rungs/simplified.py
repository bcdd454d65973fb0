"""The first rung: attention by dot products of the tokens themselves, and softmax by its routes."""

import math

import torch
from torch import Tensor

from heedful.textbook import demonstrations, simplified
from heedful.tour.comparison import Comparison, compare, rounding
from heedful.tour.inputs import Tokens
from heedful.tour.routes import OURS, by_attention
from heedful.tour.walks import Climb, largest, value, walk

MOST_LOOPED = 32  # tokens that the nested loops take; all of 512 would take minutes


def simplified_attention(tokens: Tokens) -> Climb:
    x = tokens.matrix
    asked = min(1, len(x) - 1)
    one = walk(
        f"One query, by loops: what “{tokens.labels[asked]}” makes of all tokens",
        simplified.attend_one,
        x,
        asked,
        code=(
            simplified.attend_one,
            simplified.scores_of_one,
            simplified.weights_by_stable_softmax,
            simplified.context_of_one,
        ),
    )
    every = walk("Every query at once, by matrix products", simplified.attend, x)
    scores, context = value(every.trace, "scores"), value(every.trace, "context")
    comparisons = [
        *_loops(x),
        *_softmaxes(scores, x.shape[1]),
        *compare(
            "context",
            ("matrix products", context),
            (OURS, by_attention(x, x, x, scale=1.0)),
            tolerance=_rounding_of(x),
        ),
        *compare(
            f"context of “{tokens.labels[asked]}”",
            ("its row of the matrix product", context[asked]),
            ("one query, by loops", value(one.trace, "context")),
            tolerance=_rounding_of(x),
        ),
    ]
    return Climb(
        (one, every), tuple(comparisons), (_raw_normalisation(scores), _naive_softmax(scores))
    )


def _loops(x: Tensor) -> list[Comparison]:
    """Scores and context by nested loops over the first tokens, and by matrix products."""
    few = x[:MOST_LOOPED]
    loops = "nested loops" if len(few) == len(x) else f"nested loops, first {len(few)} tokens"
    return [
        *compare(
            "scores",
            ("one matrix product", simplified.scores_by_matmul(few)),
            (loops, simplified.scores_by_loops(few)),
            tolerance=_rounding_of(x),
        ),
        *compare(
            "context",
            ("matrix products", simplified.attend(few)),
            (loops, simplified.attend_by_loops(few)),
            tolerance=_rounding_of(x),
        ),
    ]


def _softmaxes(scores: Tensor, d: int) -> list[Comparison]:
    """Softmax by its three routes; the naive one where it can be right."""
    stable = simplified.weights_by_stable_softmax(scores)
    safe = _within_naive_range(scores)
    raised = _raised(scores)
    return [
        *compare(
            "weights",
            ("stable softmax", stable),
            ("torch.softmax", torch.softmax(scores, dim=-1)),
            tolerance=rounding(d, score=largest(scores)),
        ),
        *compare(
            "weights",
            ("stable softmax", stable[safe]),
            ("naive softmax, rows in its range", simplified.weights_by_naive_softmax(scores[safe])),
            tolerance=rounding(d, score=largest(scores)),
        ),
        *compare(
            "weights",
            ("stable softmax", stable),
            ("stable softmax of raised scores", simplified.weights_by_stable_softmax(raised)),
            tolerance=rounding(1, score=largest(raised)),
        ),
    ]


def _naive_range(keys: int) -> tuple[float, float]:
    """Between which largest scores of a row exp neither loses its digits nor overflows, nor their sum."""
    lowest = math.log(torch.finfo(torch.float32).tiny)
    return lowest, demonstrations.range_of_naive_softmax(torch.float32, keys=keys).highest


def _within_naive_range(scores: Tensor) -> Tensor:
    lowest, highest = _naive_range(scores.shape[-1])
    row_largest = scores.amax(dim=-1)
    return (row_largest > lowest) & (row_largest < highest)


def _raised(scores: Tensor) -> Tensor:
    """The scores, all raised by the same amount, which changes no weight but is too much for exp."""
    return scores - scores.min() + 100


def _naive_softmax(scores: Tensor) -> str:
    lowest, highest = _naive_range(scores.shape[-1])
    safe = _within_naive_range(scores)
    raised = _raised(scores)
    lost = simplified.weights_by_naive_softmax(raised).isnan().sum().item()
    kept = simplified.weights_by_stable_softmax(raised).isfinite().sum().item()
    return (
        f"Naive softmax needs each row's largest score between {lowest:.1f} and {highest:.1f}, for exp leaves "
        f"float32 beyond; {int(safe.sum())} of {len(safe)} rows are in range. Raise all scores so that the smallest "
        f"is 100, which should change nothing, and it gives NaN in {lost} of {raised.numel()} entries; the stable "
        f"softmax gives numbers in {kept}."
    )


def _raw_normalisation(scores: Tensor) -> str:
    """What dividing by the sum gives instead of softmax: another function, not another route to it."""
    raw = simplified.weights_by_sum(scores)
    apart = largest(raw - torch.softmax(scores, dim=-1))
    return (
        "Dividing scores by their sum also makes rows add up to 1, but it is another function: its weights differ "
        f"from softmax's by up to {apart:.3g}, and its smallest is {raw.min().item():.3g}. A negative score would "
        "make a negative weight."
    )


def _rounding_of(x: Tensor) -> float:
    """For scores and contexts of bare tokens: no score is larger than the longest token's with itself."""
    return rounding(x.shape[1], score=largest(x.square().sum(dim=-1)), value=max(largest(x), 1.0))
