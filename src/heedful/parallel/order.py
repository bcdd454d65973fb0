"""Which tokens each rank has, chosen so that a mask gives all ranks equal work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Int64
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.intervals import Intervals
from heedful.lazy import lazy
from heedful.masks import Mask
from heedful.parallel.agreement import digest

# Two blocks for each rank balance a causal mask; documents of uneven lengths need more.
MOST_BLOCKS: int = 64  # for each rank
BALANCED: float = 1.05  # the busiest rank's work by the mean, beyond which finer blocks are tried


@dataclass(frozen=True, eq=False)
class TokenOrder:
    """The tokens that each rank has, in ascending order; together they are all tokens.

    Args:
        places: int64, for each rank the places of its tokens among all.

    Raises:
        ArgumentError: a place is missing, there twice, or not in ascending order.

    Examples:
        >>> order = TokenOrder((torch.tensor([0, 3]), torch.tensor([1, 2])))
        >>> order.tokens, order.ranks
        (4, 2)
    """

    places: tuple[Int64[Tensor, " tokens"], ...]

    def __post_init__(self) -> None:
        integral = all(
            isinstance(p, Tensor) and p.dtype == torch.int64 and p.dim() == 1 for p in self.places
        )
        if (
            not self.places
            or not integral
            or any(bool((p.diff() <= 0).any()) for p in self.places)
            or not _is_every_token(torch.cat(self.places))
        ):
            raise ArgumentError(
                "places",
                expected="int64 tensors that hold every token once, ascending on each rank",
                received=f"{len(self.places)} ranks",
                remedy="balanced_order() and contiguous_order() make orders.",
            )

    def __repr__(self) -> str:
        sizes = [len(places) for places in self.places]
        even = sizes[0] if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
        return f"TokenOrder({self.tokens} tokens on {self.ranks} ranks, {even} on each)"

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.places)

    @lazy
    def tokens(self) -> int:
        """How many tokens there are in all."""
        return sum(len(places) for places in self.places)

    @lazy
    def inverse(self) -> Int64[Tensor, " tokens"]:
        """Where each token stands if the tokens of all ranks follow one another."""
        return torch.cat(self.places).argsort()

    @lazy
    def digest(self) -> str:
        """A short text that differs between different orders."""
        return digest(*self.places)

    def joined(self, ranks: int) -> TokenOrder:
        """Return the order of groups of so many neighboring ranks, each with the tokens of all its ranks."""
        groups = range(0, self.ranks, ranks)
        return TokenOrder(
            tuple(self._ascending(self.places[first : first + ranks]) for first in groups)
        )

    def _ascending(self, places: Sequence[Tensor]) -> Tensor:
        """Return the places of several ranks in ascending order. Marking them is faster than sorting them."""
        marked = torch.zeros(self.tokens, dtype=torch.bool)
        for part in places:
            marked[part] = True
        return marked.nonzero().flatten()


def _is_every_token(places: Tensor) -> bool:
    """Return whether places are all numbers below their count, each of them once."""
    if len(places) and not 0 <= int(places.min()) <= int(places.max()) < len(places):
        return False
    marked = torch.zeros(len(places), dtype=torch.bool)
    marked[places] = True
    return bool(marked.all())


def contiguous_order(tokens: int, ranks: int) -> TokenOrder:
    """Return the order in which each rank has one run of tokens; their lengths differ by one at most.

    Args:
        tokens: how many tokens there are.
        ranks: how many ranks there are.

    Returns:
        The order.

    Raises:
        ArgumentError: a number is less than 1.

    Examples:
        >>> contiguous_order(5, 2).places
        (tensor([0, 1]), tensor([2, 3, 4]))
    """
    _check_counts(tokens, ranks)
    return TokenOrder(tuple(_blocks(tokens, ranks)))


def balanced_order(mask: Mask | None, tokens: int, ranks: int, *, batch: int = 1) -> TokenOrder:
    """Return the order that gives all ranks about as many pairs of a mask, with as few runs of tokens as that takes.

    Args:
        mask: which keys each query sees, of all tokens; None: all.
        tokens: how many tokens there are.
        ranks: how many ranks there are; for a mesh, all of them.
        batch: how many sequences there are.

    Returns:
        The order. Ranks differ by a few tokens if their number does not divide that of the tokens.

    Raises:
        ArgumentError: a number is less than 1, or the mask does not fit or has no key ranges.

    Examples:
        >>> from heedful import Causal
        >>> balanced_order(Causal(), 8, 2).places  # blocks i and 2n - 1 - i
        (tensor([0, 1, 6, 7]), tensor([2, 3, 4, 5]))
    """
    _check_counts(tokens, ranks)
    pairs = pairs_of_queries(lowered(mask, tokens, batch), tokens)
    best, least = contiguous_order(tokens, ranks), float("inf")
    blocks = 1
    while blocks <= min(MOST_BLOCKS, max(1, tokens // ranks)):
        order = _dealt(_blocks(tokens, ranks * blocks), pairs, ranks)
        load = imbalance(order, pairs)
        if load < least:
            best, least = order, load
        if least <= BALANCED:
            break
        blocks *= 2
    return best


def lowered(mask: Mask | None, tokens: int, batch: int) -> Intervals | None:
    """Return a mask of all tokens as key ranges; None without a mask.

    Raises:
        ArgumentError: the mask does not fit, or key ranges cannot express it.
    """
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        raise mask_error(type(mask).__name__)
    ranges = mask.intervals(tokens, batch=batch)
    if ranges is None:
        raise mask_error(repr(mask))
    return ranges


def mask_error(received: str) -> ArgumentError:
    """Return the error for a mask without key ranges."""
    return ArgumentError(
        "mask",
        expected="a mask with key ranges, such as Causal() & Window(256), of all tokens",
        received=received,
        remedy="ulysses_attention() takes dense masks, too, with contiguous_order().",
    )


def pairs_of_queries(ranges: Intervals | None, tokens: int) -> Int64[Tensor, " tokens"]:
    """Return how many keys each query sees, over all sequences that the ranges distinguish."""
    if ranges is None:
        return torch.full((tokens,), tokens)
    return (ranges.stop - ranges.start).sum(dim=(0, 2), dtype=torch.int64)


def imbalance(order: TokenOrder, pairs: Tensor) -> float:
    """Return the busiest rank's number of pairs by the mean; 1 if there are none."""
    work = [int(pairs[places].sum()) for places in order.places]
    return max(work) * len(work) / sum(work) if sum(work) else 1.0


def _blocks(tokens: int, count: int) -> list[Tensor]:
    """Cut the tokens into blocks whose lengths differ by one at most."""
    edges = [i * tokens // count for i in range(count + 1)]
    return [torch.arange(first, last) for first, last in pairwise(edges)]


def _dealt(blocks: Sequence[Tensor], pairs: Tensor, ranks: int) -> TokenOrder:
    """Give each rank equally many blocks, the heaviest first, each to the rank that has the least work so far."""
    each = len(blocks) // ranks
    if each == 1:
        return TokenOrder(tuple(blocks))
    work = [int(pairs[block].sum()) for block in blocks]
    heaviest = sorted(range(len(blocks)), key=lambda i: (-work[i], i))
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for block in heaviest:
        free = [rank for rank in range(ranks) if len(dealt[rank]) < each]
        rank = min(free, key=lambda rank: (loads[rank], len(dealt[rank])))
        dealt[rank].append(block)
        loads[rank] += work[block]
    dealt.sort(key=min)  # the first rank has the first token
    return TokenOrder(tuple(torch.cat([blocks[i] for i in sorted(mine)]) for mine in dealt))


def _check_counts(tokens: int, ranks: int) -> None:
    for name, count in (("tokens", tokens), ("ranks", ranks)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError(
                name,
                expected="an integer of at least 1",
                received=repr(count),
                remedy="Pass the number of all tokens, and that of all ranks.",
            )
