"""Attention without weights: every token looks at every token by the dot product of their embeddings.

Three steps, each in its routes: scores (how alike are two tokens?), weights (scores made positive, adding
up to 1), context (the tokens, averaged with these weights). Nothing is learned and nothing is scaled yet.
Tokens are (T, d), T tokens of d features, in any floating dtype.
"""

# ruff: noqa: RET504 - the last step has a name too: it is what `record` calls it by

import torch
from torch import Tensor

# --- scores: how alike are a query and each token? ---------------------------------------------------


def scores_of_one(query: Tensor, tokens: Tensor) -> Tensor:
    """One dot product a token: query (d,), tokens (T, d) → (T,). Figures A.scores.query1, C.scores.query1."""
    scores = torch.stack([torch.dot(query, token) for token in tokens])
    return scores


def scores_by_loops(tokens: Tensor) -> Tensor:
    """Every token as the query in turn: tokens (T, d) → (T, T), one row a query. Figure C.scores.all."""
    scores = torch.stack([scores_of_one(query, tokens) for query in tokens])
    return scores


def scores_by_matmul(tokens: Tensor) -> Tensor:
    """All T² dot products as one matrix product: tokens (T, d) → (T, T). Figure C.scores.all."""
    scores = tokens @ tokens.mT
    return scores


# --- weights: each row of scores made to add up to 1 -------------------------------------------------


def weights_by_sum(scores: Tensor) -> Tensor:
    """Divide by the sum: scores (..., T) → (..., T).

    It adds up to 1, but a negative score becomes a negative weight, and scores that cancel divide by
    nearly zero. Softmax suffers from neither.
    """
    total = scores.sum(dim=-1, keepdim=True)
    weights = scores / total
    return weights


def weights_by_naive_softmax(scores: Tensor) -> Tensor:
    """Softmax as it is defined, exp(s) / Σ exp(s): scores (..., T) → (..., T).

    Right in mathematics and wrong in floating point: exp leaves float32's range for scores above 88.7, and
    inf / inf is NaN. `demonstrations.range_of_naive_softmax` finds the limits of each dtype.
    """
    exponentials = torch.exp(scores)
    total = exponentials.sum(dim=-1, keepdim=True)
    weights = exponentials / total
    return weights


def weights_by_stable_softmax(scores: Tensor) -> Tensor:
    """Softmax of the scores less their largest: scores (..., T) → (..., T), as `torch.softmax` does it.

    A constant taken from all scores cancels in the quotient. With the largest taken, every exponent is at
    most 0: none overflows, and the sum is at least 1, so it never divides by zero.
    """
    largest = scores.amax(dim=-1, keepdim=True)
    exponentials = torch.exp(scores - largest)
    total = exponentials.sum(dim=-1, keepdim=True)
    weights = exponentials / total
    return weights


# --- context: the tokens averaged with these weights -------------------------------------------------


def context_of_one(weights: Tensor, tokens: Tensor) -> Tensor:
    """Weigh each token, then add: weights (T,), tokens (T, d) → (d,). Figures A.context.query1, C.context.query1."""
    weighted_tokens = torch.stack(
        [weight * token for weight, token in zip(weights, tokens, strict=True)]
    )
    context = weighted_tokens.sum(dim=0)
    return context


def context_by_loops(weights: Tensor, tokens: Tensor) -> Tensor:
    """Each row of weights in turn: weights (T, T), tokens (T, d) → (T, d). Figure C.context.all."""
    context = torch.stack([context_of_one(row, tokens) for row in weights])
    return context


def context_by_matmul(weights: Tensor, tokens: Tensor) -> Tensor:
    """All T weighted sums as one matrix product: weights (T, T), tokens (T, d) → (T, d). Figure C.context.all."""
    context = weights @ tokens
    return context


# --- the whole mechanism -----------------------------------------------------------------------------


def attend_one(tokens: Tensor, index: int) -> Tensor:
    """What token `index` makes of all tokens, by loops: tokens (T, d) → context (d,)."""
    query = tokens[index]
    scores = scores_of_one(query, tokens)
    weights = weights_by_stable_softmax(scores)
    context = context_of_one(weights, tokens)
    return context


def attend_by_loops(tokens: Tensor) -> Tensor:
    """What every token makes of all tokens, by nested loops: tokens (T, d) → context (T, d)."""
    scores = scores_by_loops(tokens)
    weights = weights_by_stable_softmax(scores)
    context = context_by_loops(weights, tokens)
    return context


def attend(tokens: Tensor) -> Tensor:
    """softmax(X Xᵀ) X, the same all at once: tokens (T, d) → context (T, d). Figures A.context.all, C.context.all."""
    scores = tokens @ tokens.mT
    weights = torch.softmax(scores, dim=-1)
    context = weights @ tokens
    return context
