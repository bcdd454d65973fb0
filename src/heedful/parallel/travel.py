"""Which keys travel from which rank to which, in which round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from heedful.intervals import Intervals
from heedful.masks import Mask
from heedful.parallel.agreement import digest
from heedful.parallel.order import TokenOrder, lowered

KEYS_PER_MESSAGE: int = 2048


@dataclass(frozen=True, eq=False)
class Travel:
    """What a mask makes of an order: the keys that each rank needs of every other, in messages.

    Attributes:
        order: the tokens of each rank.
        ranges: the mask of all tokens; None: every query sees every key.
        needed: for each rank, which of all keys its queries see, in any sequence: Boolean (tokens,).
        counts: int64 (ranks, ranks), how many of a rank's keys (rows) each rank needs (columns), itself included.
        pairs: int64 (ranks, ranks), how many pairs a mask shows of a rank's keys (rows) and each rank's queries
            (columns), over all sequences that the ranges distinguish.
        rounds: step and number of each round of messages: in step t, rank r sends to rank r + t.
        digest: a short text that differs between different masks.
    """

    order: TokenOrder
    ranges: Intervals | None
    needed: tuple[Tensor, ...]
    counts: Tensor
    pairs: Tensor
    rounds: tuple[tuple[int, int], ...]
    digest: str

    def sent(self, rank: int, round_: tuple[int, int]) -> tuple[int, Tensor] | None:
        """Return whom a rank sends keys in a round, and the indices of these among its own; None: it sends none."""
        step, number = round_
        to = (rank + step) % self.order.ranks
        first = number * KEYS_PER_MESSAGE
        if first >= self.counts[rank, to]:
            return None
        indices = self.needed[to][self.order.places[rank]].nonzero().flatten()
        return to, indices[first : first + KEYS_PER_MESSAGE]

    def received(self, rank: int, round_: tuple[int, int]) -> tuple[int, Tensor] | None:
        """Return from whom a rank gets keys in a round, and which of the sender's; None: it gets none."""
        sender = (rank - round_[0]) % self.order.ranks
        sent = self.sent(sender, round_)
        return None if sent is None else (sender, sent[1])


def travel_of(mask: Mask | None, order: TokenOrder, batch: int) -> Travel:
    """Return which keys travel under a mask of all tokens.

    Raises:
        ArgumentError: the mask does not fit, or key ranges cannot express it.
    """
    if mask is None or (isinstance(mask, Mask) and mask.constant):
        return _cached(mask, order, batch)  # models use the same mask in every layer
    return _travel(mask, order, batch)


@lru_cache(maxsize=32)
def _cached(mask: Mask | None, order: TokenOrder, batch: int) -> Travel:
    return _travel(mask, order, batch)


@torch.inference_mode(False)
@torch.no_grad()
def _travel(mask: Mask | None, order: TokenOrder, batch: int) -> Travel:
    ranges = lowered(mask, order.tokens, batch)
    by_rank = torch.cat(order.places).int()  # gathered four times as fast as by int64
    sizes = [len(places) for places in order.places]
    needed: list[Tensor] = []
    counts, pairs = torch.zeros(2, order.ranks, order.ranks, dtype=torch.int64)
    for rank, places in enumerate(order.places):
        queries = _queries_of_keys(ranges, places, order.tokens)
        needed.append(queries > 0)
        of_senders = queries.index_select(0, by_rank).split(sizes)
        counts[:, rank] = torch.stack([part.count_nonzero() for part in of_senders])
        pairs[:, rank] = torch.stack([part.sum(dtype=torch.int64) for part in of_senders])
    rounds = [
        (step, number)
        for step in range(1, order.ranks)
        for number in range(_most_messages(counts, step))
    ]
    key_ranges = "none" if ranges is None else digest(ranges.start, ranges.stop)
    return Travel(order, ranges, tuple(needed), counts, pairs, tuple(rounds), key_ranges)


def _queries_of_keys(ranges: Intervals | None, queries: Tensor, tokens: int) -> Tensor:
    """Return how many of some queries see each of all keys, over all sequences: int32 (tokens,)."""
    if ranges is None:
        return torch.full((tokens,), len(queries), dtype=torch.int32)
    return ranges.rows(queries).queries_of_keys().sum(dim=0, dtype=torch.int32)


def _most_messages(counts: Tensor, step: int) -> int:
    """Return in how many messages the largest part travels by so many ranks."""
    return -(-int(counts.roll(-step, dims=1).diagonal().max()) // KEYS_PER_MESSAGE)
