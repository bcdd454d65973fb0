"""Causal attention: its weights by two routes, dropout, and the module that combines everything."""

# ruff: noqa: RET504 - `record` names the last step after its variable

import torch
from torch import Tensor, nn

from heedful.observation import Trace, record
from heedful.textbook import CausalAttention, SelfAttentionV2, causal, demonstrations
from heedful.tour.comparison import compare, rounding_tolerance
from heedful.tour.inputs import Tokens
from heedful.tour.recordings import (
    DROPOUT,
    SEED,
    RungResult,
    head_size,
    largest_absolute,
    last_value,
    record_run,
)
from heedful.tour.routes import HEEDFUL, compare_with_fused, heedful_context, trace_tolerance


def causal_weights(tokens: Tokens) -> RungResult:
    """Record both routes to causal weights, and compare them with the weights of our attention."""
    projected = _project(tokens.matrix)
    scaled_scores = last_value(projected, "scaled_scores")
    renormalised = record_run(
        "First route: remove later keys, then renormalise",
        causal.weights_by_renormalising,
        scaled_scores,
    )
    infinite = record_run(
        "Second route: −∞ before softmax", causal.weights_by_minus_infinity, scaled_scores
    )
    weights = last_value(infinite.trace, "weights")
    row_sums = last_value(renormalised.trace, "row_sums").squeeze(-1)
    accurate = _keeps_precision(row_sums)
    tolerance = rounding_tolerance(tokens.matrix.shape[1], score=largest_absolute(scaled_scores))
    comparisons = [
        *compare(
            "weights",
            ("−∞ before softmax", weights[accurate]),
            ("renormalising", last_value(renormalised.trace, "weights")[accurate]),
            tolerance=tolerance,
        ),
        *compare(
            "weights",
            ("−∞ before softmax", weights),
            (f"{HEEDFUL} with Causal(), the identity as values", _weights_of_heedful(projected)),
            tolerance=tolerance,
        ),
        *compare(
            "row sums of the weights",
            ("1", torch.ones(len(weights))),
            ("−∞ before softmax", weights.sum(dim=-1)),
            tolerance=tolerance,
        ),
    ]
    finding = (
        f"Without later keys, rows add up to between {row_sums.min().item():.3g} and {row_sums.max().item():.3g}. In "
        f"{int((~accurate).sum())} of {len(row_sums)} rows the sum is too small to divide by. The second route has no "
        "such rows."
    )
    return RungResult((renormalised, infinite), tuple(comparisons), (finding,), beside=True)


def dropout(tokens: Tokens) -> RungResult:
    """Record dropout on causal weights, and compare the surviving weights with those of our attention."""
    projected = _project(tokens.matrix)
    scaled_scores = last_value(projected, "scaled_scores")
    module = nn.Dropout(DROPOUT)
    torch.manual_seed(SEED)  # the draw that the documents print begins here
    run = record_run(
        f"nn.Dropout({DROPOUT}) on causal weights, in training mode",
        dropped_causal_weights,
        scaled_scores,
        module,
        code=(dropped_causal_weights, causal.weights_by_minus_infinity),
    )
    weights = last_value(run.trace, "weights")
    dropped = last_value(run.trace, "dropped_weights")
    ours = _weights_of_heedful(projected, dropout_p=DROPOUT)
    grown = weights / (1 - DROPOUT)
    score = largest_absolute(scaled_scores)
    tolerance = rounding_tolerance(tokens.matrix.shape[1], score=score, value=2.0)
    comparisons = [
        *compare(
            "surviving weights",
            ("weights / (1 − p)", grown[dropped > 0]),
            ("nn.Dropout", dropped[dropped > 0]),
            tolerance=tolerance,
        ),
        *compare(
            "surviving weights",
            ("weights / (1 − p)", grown[ours > 0]),
            (f"{HEEDFUL} with dropout_p={DROPOUT}", ours[ours > 0]),
            tolerance=tolerance,
        ),
        *compare(
            "weights",
            ("without dropout", weights),
            ("nn.Dropout in evaluation mode", module.eval()(weights)),
            tolerance=0.0,
        ),
    ]
    effect = demonstrations.effect_of_dropout(weights[-1], DROPOUT)
    finding = (
        f"In 1000 draws on the last row, {effect.dropped:.1%} of its weights were dropped, and the others added up to "
        f"between {effect.min_row_sum:.3g} and {effect.max_row_sum:.3g}: only the average is 1."
    )
    return RungResult((run,), tuple(comparisons), (finding,))


def dropped_causal_weights(scaled_scores: Tensor, dropout: nn.Dropout) -> Tensor:
    """Compute causal weights and drop some of them: (T, T) → (T, T)."""
    weights = causal.weights_by_minus_infinity(scaled_scores)
    dropped_weights = dropout(weights)
    return dropped_weights


def causal_attention(tokens: Tokens) -> RungResult:
    """Record `CausalAttention` and compare it with other routes, a batch, and another future."""
    x, d = tokens.matrix, tokens.matrix.shape[1]
    module = CausalAttention(d, head_size(d), context_length=len(x), dropout=DROPOUT).eval()
    run = record_run("CausalAttention, in evaluation mode", module, x)
    values, context = last_value(run.trace, "values"), last_value(run.trace, "context")
    scaled_scores = last_value(run.trace, "scaled_scores")
    accurate = _keeps_precision(torch.softmax(scaled_scores, dim=-1).tril().sum(dim=-1))
    renormalised = causal.weights_by_renormalising(scaled_scores)[accurate] @ values
    another_future = torch.cat([x[:-1], -x[-1:]])
    tolerance = trace_tolerance(run.trace, d)
    comparisons = [
        *compare(
            "context",
            ("CausalAttention", context[accurate]),
            ("renormalised weights @ values", renormalised),
            tolerance=tolerance,
        ),
        *compare_with_fused(run, "CausalAttention", d, causal=True),
        *compare(
            "context",
            ("CausalAttention", context),
            ("the same tokens, second in a batch", module(torch.stack([x.flip(0), x]))[1]),
            tolerance=tolerance,
        ),
        *compare(
            "context before the last token",
            ("CausalAttention", context[:-1]),
            ("the same with the last token negated", module(another_future)[:-1]),
            tolerance=tolerance,
        ),
        *compare(
            "context of the first token",
            ("its own value", values[0]),
            ("CausalAttention", context[0]),
            tolerance=tolerance,
        ),
    ]
    return RungResult((run,), tuple(comparisons))


def _project(x: Tensor) -> Trace:
    """Record queries, keys and scaled scores with the weights of the rung before."""
    d = x.shape[1]
    return record(SelfAttentionV2(d, head_size(d)), x)


def _weights_of_heedful(projected: Trace, **options: float) -> Tensor:
    """Return the weights of our attention, which are its context for the identity as values."""
    queries, keys = last_value(projected, "queries"), last_value(projected, "keys")
    return heedful_context(queries, keys, torch.eye(len(queries)), causal=True, **options)


def _keeps_precision(row_sums: Tensor) -> Tensor:
    """Return which row sums are large enough to divide by. The underflow of the others is not the route's error."""
    limits = torch.finfo(row_sums.dtype)
    return row_sums > limits.tiny / limits.eps
