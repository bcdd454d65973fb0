"""Causal attention: its weights by two routes, dropout on them, and the module that holds it all."""

# ruff: noqa: RET504 - the last step has a name too: it is what `record` calls it by

import torch
from torch import Tensor, nn

from heedful.observation import Trace, record
from heedful.textbook import CausalAttention, SelfAttentionV2, causal, demonstrations
from heedful.tour.comparison import compare, rounding
from heedful.tour.inputs import Tokens
from heedful.tour.routes import OURS, against_fused, by_attention, rounding_in
from heedful.tour.walks import DROPOUT, SEED, Climb, head_size, largest, value, walk


def causal_weights(tokens: Tokens) -> Climb:
    projected = _projected(tokens.matrix)
    scaled_scores = value(projected, "scaled_scores")
    renormalised = walk(
        "First route: strike out the future, then renormalise",
        causal.weights_by_renormalising,
        scaled_scores,
    )
    infinite = walk(
        "Second route: −∞ before softmax", causal.weights_by_minus_infinity, scaled_scores
    )
    weights = value(infinite.trace, "weights")
    left = value(renormalised.trace, "row_sums").squeeze(-1)
    whole = _keeps_its_digits(left)
    tolerance = rounding(tokens.matrix.shape[1], score=largest(scaled_scores))
    comparisons = [
        *compare(
            "weights",
            ("−∞ before softmax", weights[whole]),
            ("renormalising", value(renormalised.trace, "weights")[whole]),
            tolerance=tolerance,
        ),
        *compare(
            "weights",
            ("−∞ before softmax", weights),
            (f"{OURS} with Causal(), the identity as values", _weights_of_attention(projected)),
            tolerance=tolerance,
        ),
        *compare(
            "sums of the weights' rows",
            ("1", torch.ones(len(weights))),
            ("−∞ before softmax", weights.sum(dim=-1)),
            tolerance=tolerance,
        ),
    ]
    finding = (
        f"With the future struck out, rows add up to between {left.min().item():.3g} and {left.max().item():.3g}; "
        f"{int((~whole).sum())} of {len(left)} keep too little to divide by. The second route has no such rows."
    )
    return Climb((renormalised, infinite), tuple(comparisons), (finding,))


def dropout(tokens: Tokens) -> Climb:
    projected = _projected(tokens.matrix)
    module = nn.Dropout(DROPOUT)
    torch.manual_seed(SEED)  # the documents' printed draw begins here
    run = walk(
        f"nn.Dropout({DROPOUT}) on causal weights, in training mode",
        dropped_causal_weights,
        value(projected, "scaled_scores"),
        module,
        code=(dropped_causal_weights, causal.weights_by_minus_infinity),
    )
    weights, dropped = value(run.trace, "weights"), value(run.trace, "dropped_weights")
    ours = _weights_of_attention(projected, dropout_p=DROPOUT)
    grown = weights / (1 - DROPOUT)
    tolerance = rounding(
        tokens.matrix.shape[1], score=largest(value(projected, "scaled_scores")), value=2.0
    )
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
            (f"{OURS} with dropout_p={DROPOUT}", ours[ours > 0]),
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
        f"Over 1000 draws on the last row, {effect.dropped:.1%} of its weights were dropped, and the rest added up to "
        f"between {effect.min_row_sum:.3g} and {effect.max_row_sum:.3g}: only the average is 1."
    )
    return Climb((run,), tuple(comparisons), (finding,))


def dropped_causal_weights(scaled_scores: Tensor, dropout: nn.Dropout) -> Tensor:
    weights = causal.weights_by_minus_infinity(scaled_scores)
    dropped_weights = dropout(weights)
    return dropped_weights


def causal_attention(tokens: Tokens) -> Climb:
    x, d = tokens.matrix, tokens.matrix.shape[1]
    module = CausalAttention(d, head_size(d), context_length=len(x), dropout=DROPOUT).eval()
    run = walk("CausalAttention, in evaluation mode", module, x)
    values, context = value(run.trace, "values"), value(run.trace, "context")
    scaled_scores = value(run.trace, "scaled_scores")
    whole = _keeps_its_digits(torch.softmax(scaled_scores, dim=-1).tril().sum(dim=-1))
    renormalised = causal.weights_by_renormalising(scaled_scores)[whole] @ values
    another_future = torch.cat([x[:-1], -x[-1:]])
    tolerance = rounding_in(run.trace, d)
    comparisons = [
        *compare(
            "context",
            ("CausalAttention", context[whole]),
            ("renormalised weights @ values", renormalised),
            tolerance=tolerance,
        ),
        *against_fused(run, "CausalAttention", d, causal=True),
        *compare(
            "context",
            ("CausalAttention", context),
            ("the same tokens as second of a batch", module(torch.stack([x.flip(0), x]))[1]),
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
    return Climb((run,), tuple(comparisons))


def _projected(x: Tensor) -> Trace:
    """Queries, keys and scaled scores as the rung before had them."""
    d = x.shape[1]
    return record(SelfAttentionV2(d, head_size(d)), x)


def _weights_of_attention(projected: Trace, **options: float) -> Tensor:
    """The weights within our attention: what it gives for values that are the identity."""
    queries, keys = value(projected, "queries"), value(projected, "keys")
    return by_attention(queries, keys, torch.eye(len(queries)), causal=True, **options)


def _keeps_its_digits(row_sums: Tensor) -> Tensor:
    """Which rows of struck-out weights kept enough to be divided by; the others' underflow is no route's fault."""
    limits = torch.finfo(row_sums.dtype)
    return row_sums > limits.tiny / limits.eps
