"""An interpolated bigram model, whose loss a GPT must beat to have learned more than pairs of tokens.

Modified Kneser–Ney smoothing (Chen & Goodman 1999, section 3), the strongest of the standard methods:

    p(w | v) = (c(v w) − D(c(v w))) / c(v)  +  (sum of the discounts D after v) / c(v) × p(w)

Here p(w) counts after how many different tokens w occurs, not how often. These counts are discounted in the same way,
in favour of the uniform distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import ArgumentError


class Bigram:
    """A bigram model of a sequence of tokens.

    Args:
        tokens: the sequence to count, integers (N,).
        vocab_size: V; the model predicts the ids from 0 to V - 1.

    Raises:
        ArgumentError: there are fewer than two tokens.

    Examples:
        >>> model = Bigram(np.array([0, 1, 0, 1, 0, 2]), 3)
        >>> model.probability(np.array([0]), np.array([0, 1, 2])).sum().round(6)
        np.float64(1.0)
    """

    def __init__(self, tokens: NDArray[np.integer[Any]], vocab_size: int) -> None:
        V = self._vocab_size = vocab_size
        _check_length(tokens)
        self._pairs, counts = np.unique(self._pair(tokens[:-1], tokens[1:]), return_counts=True)
        before, after = np.divmod(self._pairs, V)
        # For each pair, its discounted count; for each first token, its count and the sum of its discounts.
        self._discounted_counts, discounts = _discount(counts)
        self._totals = np.bincount(before, counts, V)
        self._discounts = np.bincount(before, discounts, V)

        # p(w), by the number of different tokens that w follows.
        predecessors = np.bincount(after, minlength=V)
        discounted_counts, discounts = _discount(predecessors)
        self._unigram = (discounted_counts + discounts.sum() / V) / predecessors.sum()

    def probability(
        self, before: NDArray[np.integer[Any]], after: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """Return the probability of each token after each other token.

        Args:
            before: the preceding tokens, integers.
            after: the predicted tokens, integers of a shape that broadcasts with that of `before`.

        Returns:
            The probabilities, float64 of the common shape.
        """
        pairs = self._pair(before, after)
        index = np.searchsorted(self._pairs, pairs).clip(max=len(self._pairs) - 1)
        count = np.where(self._pairs[index] == pairs, self._discounted_counts[index], 0.0)
        total, discounts = self._totals[before], self._discounts[before]
        divisor = np.maximum(total, 1)
        # After a token that was never followed by any, only p(w) is left.
        weight = np.where(total > 0, discounts / divisor, 1.0)
        return count / divisor + weight * self._unigram[after]

    def loss(self, tokens: NDArray[np.integer[Any]]) -> float:
        """Return the mean negative log-probability of each token after the one before it.

        Args:
            tokens: integers (N,); all but the first are predicted, as in `batches.sweep`.

        Returns:
            The loss in nats per token.

        Raises:
            ArgumentError: there are fewer than two tokens.
        """
        _check_length(tokens)
        return float(-np.log(self.probability(tokens[:-1], tokens[1:])).mean())

    def _pair(
        self, before: NDArray[np.integer[Any]], after: NDArray[np.integer[Any]]
    ) -> NDArray[np.int64]:
        """Encode two tokens as one number."""
        return np.asarray(before, np.int64) * self._vocab_size + after


def _discount(
    counts: NDArray[np.integer[Any]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Split each count into what remains after the discount, and the discount.

    The discounts depend on how many counts are 1, 2, 3 and 4 (Chen & Goodman 1999, section 3). A short text may have
    none of these, so each number is increased by one. No larger count is discounted by less than a count of 1, so that
    some probability is left for unseen pairs.
    """
    n1, n2, n3, n4 = (np.count_nonzero(counts == times) + 1 for times in (1, 2, 3, 4))
    Y = n1 / (n1 + 2 * n2)
    D1, D2, D3 = 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3
    discounts = np.array([0, D1, max(D1, D2), max(D1, D3)], np.float64)
    discount = discounts[np.minimum(counts, 3)]
    return np.asarray(counts - discount, np.float64), discount


def _check_length(tokens: NDArray[np.integer[Any]]) -> None:
    if len(tokens) < 2:
        raise ArgumentError(
            "tokens",
            expected="at least two tokens, which form a pair",
            received=str(len(tokens)),
            remedy="Pass a longer text.",
        )
