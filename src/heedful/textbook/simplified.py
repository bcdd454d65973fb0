"""Attention without trained weights: tokens attend to each other by the dot products of their embeddings.

It has three steps, each shown in several ways: scores (how similar are two tokens?), weights (scores normalized so that
they sum to 1) and context (the average of the tokens with these weights). Nothing is trained or scaled yet. Tokens are
(T, d): T tokens of d features, in any floating dtype.
"""

# ruff: noqa: RET504 - the last step has a name too, which `record` uses

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# --- scores: how similar are a query and each token? -------------------------------------------------


def scores_of_one(query: Float[Tensor, " d"], tokens: Float[Tensor, "T d"]) -> Float[Tensor, " T"]:
    """Compute the dot product of a query with each token.

    Reproduces the figures A.scores.query1 and C.scores.query1.

    Args:
        query: (d,).
        tokens: (T, d).

    Returns:
        The scores (T,).

    Examples:
        >>> scores_of_one(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
        tensor([1., 5.])
    """
    scores = torch.stack([torch.dot(query, token) for token in tokens])
    return scores


def scores_by_loops(tokens: Float[Tensor, "T d"]) -> Float[Tensor, "T T"]:
    """Compute the scores of all pairs of tokens with loops.

    Reproduces the figure C.scores.all.

    Args:
        tokens: (T, d).

    Returns:
        The scores (T, T), one row per query.

    Examples:
        >>> scores_by_loops(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
        tensor([[ 1.,  3.],
                [ 3., 10.]])
    """
    scores = torch.stack([scores_of_one(query, tokens) for query in tokens])
    return scores


def scores_by_matmul(tokens: Float[Tensor, "T d"]) -> Float[Tensor, "T T"]:
    """Compute the scores of all pairs of tokens with one matrix product.

    Reproduces the figure C.scores.all.

    Args:
        tokens: (T, d).

    Returns:
        The scores (T, T), one row per query.

    Examples:
        >>> scores_by_matmul(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
        tensor([[ 1.,  3.],
                [ 3., 10.]])
    """
    scores = tokens @ tokens.mT
    return scores


# --- weights: each row of scores normalized so that it sums to 1 -------------------------------------


def weights_by_sum(scores: Float[Tensor, "*rows T"]) -> Float[Tensor, "*rows T"]:
    """Divide scores by their sum.

    The weights sum to 1, but a negative score becomes a negative weight, and scores that cancel each other lead to a
    division by almost zero. Softmax has neither problem.

    Args:
        scores: (…, T).

    Returns:
        The weights (…, T).

    Examples:
        >>> weights_by_sum(torch.tensor([1.0, 3.0]))
        tensor([0.2500, 0.7500])
    """
    total = scores.sum(dim=-1, keepdim=True)
    weights = scores / total
    return weights


def weights_by_naive_softmax(scores: Float[Tensor, "*rows T"]) -> Float[Tensor, "*rows T"]:
    """Compute the softmax by its definition, exp(s) / Σ exp(s).

    This is mathematically correct, but fails in floating point: in float32, exp overflows for scores above 88.7, and
    inf / inf is NaN. `demonstrations.range_of_naive_softmax` finds the limits of each dtype.

    Args:
        scores: (…, T).

    Returns:
        The weights (…, T).

    Examples:
        >>> weights_by_naive_softmax(torch.tensor([0.0, 0.0]))
        tensor([0.5000, 0.5000])
        >>> weights_by_naive_softmax(torch.tensor([100.0, 100.0]))
        tensor([nan, nan])
    """
    exponentials = torch.exp(scores)
    total = exponentials.sum(dim=-1, keepdim=True)
    weights = exponentials / total
    return weights


def weights_by_stable_softmax(scores: Float[Tensor, "*rows T"]) -> Float[Tensor, "*rows T"]:
    """Compute the softmax after subtracting the largest score, as `torch.softmax` does.

    A constant that is subtracted from all scores cancels in the quotient. If it is the largest score, every exponent is
    at most 0, so that nothing overflows, and the sum is at least 1, so that it is never a division by zero.

    Args:
        scores: (…, T).

    Returns:
        The weights (…, T).

    Examples:
        >>> weights_by_stable_softmax(torch.tensor([100.0, 100.0]))
        tensor([0.5000, 0.5000])
    """
    largest = scores.amax(dim=-1, keepdim=True)
    exponentials = torch.exp(scores - largest)
    total = exponentials.sum(dim=-1, keepdim=True)
    weights = exponentials / total
    return weights


# --- context: the average of the tokens with these weights -------------------------------------------


def context_of_one(
    weights: Float[Tensor, " T"], tokens: Float[Tensor, "T d"]
) -> Float[Tensor, " d"]:
    """Multiply each token by its weight and sum them.

    Reproduces the figures A.context.query1 and C.context.query1.

    Args:
        weights: (T,).
        tokens: (T, d).

    Returns:
        The context (d,).

    Examples:
        >>> context_of_one(torch.tensor([0.5, 0.5]), torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
        tensor([2.0000, 0.5000])
    """
    weighted_tokens = torch.stack(
        [weight * token for weight, token in zip(weights, tokens, strict=True)]
    )
    context = weighted_tokens.sum(dim=0)
    return context


def context_by_loops(
    weights: Float[Tensor, "T T"], tokens: Float[Tensor, "T d"]
) -> Float[Tensor, "T d"]:
    """Compute the context of each row of weights with a loop.

    Reproduces the figure C.context.all.

    Args:
        weights: (T, T).
        tokens: (T, d).

    Returns:
        The contexts (T, d).

    Examples:
        >>> context_by_loops(torch.eye(2), torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
        tensor([[1., 0.],
                [3., 1.]])
    """
    context = torch.stack([context_of_one(row, tokens) for row in weights])
    return context


def context_by_matmul(
    weights: Float[Tensor, "T T"], tokens: Float[Tensor, "T d"]
) -> Float[Tensor, "T d"]:
    """Compute all contexts with one matrix product.

    Reproduces the figure C.context.all.

    Args:
        weights: (T, T).
        tokens: (T, d).

    Returns:
        The contexts (T, d).

    Examples:
        >>> context_by_matmul(torch.eye(2), torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
        tensor([[1., 0.],
                [3., 1.]])
    """
    context = weights @ tokens
    return context


# --- the whole mechanism -----------------------------------------------------------------------------


def attend_one(tokens: Float[Tensor, "T d"], index: int) -> Float[Tensor, " d"]:
    """Compute the context of one token with loops.

    Args:
        tokens: (T, d).
        index: the index of the token that attends.

    Returns:
        The context (d,).

    Examples:
        >>> attend_one(torch.zeros(2, 3), 0)
        tensor([0., 0., 0.])
    """
    query = tokens[index]
    scores = scores_of_one(query, tokens)
    weights = weights_by_stable_softmax(scores)
    context = context_of_one(weights, tokens)
    return context


def attend_by_loops(tokens: Float[Tensor, "T d"]) -> Float[Tensor, "T d"]:
    """Compute the contexts of all tokens with nested loops.

    Args:
        tokens: (T, d).

    Returns:
        The contexts (T, d).

    Examples:
        >>> tokens = torch.eye(2)
        >>> torch.allclose(attend_by_loops(tokens), attend(tokens))
        True
    """
    scores = scores_by_loops(tokens)
    weights = weights_by_stable_softmax(scores)
    context = context_by_loops(weights, tokens)
    return context


def attend(tokens: Float[Tensor, "T d"]) -> Float[Tensor, "T d"]:
    """Compute softmax(X Xᵀ) X, the contexts of all tokens, with matrix products.

    Reproduces the figures A.context.all and C.context.all.

    Args:
        tokens: (T, d).

    Returns:
        The contexts (T, d).

    Examples:
        >>> attend(torch.eye(2))
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
    """
    scores = tokens @ tokens.mT
    weights = torch.softmax(scores, dim=-1)
    context = weights @ tokens
    return context
