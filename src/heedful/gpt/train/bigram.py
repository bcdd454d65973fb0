"""An interpolated bigram model: the loss that a GPT must beat to have learned more than pairs of tokens.

Modified Kneser–Ney smoothing (Chen & Goodman 1999, section 3), the strongest of the standard ones:

    p(w | v) = (c(v w) − D(c(v w))) / c(v)  +  (sum of the discounts D taken after v) / c(v) × p(w)

where p(w) says not how often w occurs but after how many different tokens, discounted in the same way in favour of the
uniform distribution.
"""

import numpy as np

from heedful.errors import ArgumentError


class Bigram:
    """A bigram model of a sequence of tokens.

    Args:
        tokens: what to count, as a `Split` has it: integers (N,).
        vocab_size: V; probabilities are over the ids from 0 to below it.

    Raises:
        ArgumentError: fewer than two tokens.
    """

    def __init__(self, tokens: np.ndarray, vocab_size: int) -> None:
        V = self._vocab_size = vocab_size
        _check_pairs(tokens)
        self._pairs, counts = np.unique(self._pair(tokens[:-1], tokens[1:]), return_counts=True)
        before, after = np.divmod(self._pairs, V)
        self._kept, taken = _discounted(counts)
        self._totals = np.bincount(before, counts, V)
        self._taken = np.bincount(before, taken, V)

        predecessors = np.bincount(after, minlength=V)
        kept, taken = _discounted(predecessors)
        self._lower = (kept + taken.sum() / V) / predecessors.sum()

    def probability(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Of each token after each: two integer arrays that broadcast, float64 of their common shape."""
        pairs = self._pair(before, after)
        place = np.searchsorted(self._pairs, pairs).clip(max=len(self._pairs) - 1)
        kept = np.where(self._pairs[place] == pairs, self._kept[place], 0.0)
        total, taken = self._totals[before], self._taken[before]
        seen = np.maximum(
            total, 1
        )  # after a token that was never followed, only the lower order is left
        return kept / seen + np.where(total > 0, taken / seen, 1.0) * self._lower[after]

    def loss(self, tokens: np.ndarray) -> float:
        """The mean negative log-probability of each token after the one before it, in nats.

        Args:
            tokens: integers (N,); all but the first are predicted, as by `batches.sweep`.

        Raises:
            ArgumentError: fewer than two tokens.
        """
        _check_pairs(tokens)
        return float(-np.log(self.probability(tokens[:-1], tokens[1:])).mean())

    def _pair(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """One number for two tokens."""
        return np.asarray(before, np.int64) * self._vocab_size + after


def _discounted(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the discounts leave of each count, and what they take.

    The discounts follow from how many counts are 1, 2, 3 and 4. Little text may have none of them: each number is taken
    to be one more, and no larger count loses less than a 1 does, so that something is left for what was not seen.
    """
    n1, n2, n3, n4 = (np.count_nonzero(counts == times) + 1 for times in (1, 2, 3, 4))
    Y = n1 / (n1 + 2 * n2)
    of_1, of_2, of_more = 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3
    discounts = np.array([0, of_1, max(of_1, of_2), max(of_1, of_more)])
    taken = discounts[np.minimum(counts, 3)]
    return counts - taken, taken


def _check_pairs(tokens: np.ndarray) -> None:
    if len(tokens) < 2:
        raise ArgumentError(
            "tokens",
            expected="at least two, which make a pair",
            received=str(len(tokens)),
            remedy="Give it more text.",
        )
