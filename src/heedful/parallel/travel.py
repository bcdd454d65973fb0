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
        messages: for each sender and receiver, the indices among the sender's keys, int64, one tensor for a message.
        rounds: step and number of each round of messages: in step t, rank r sends to rank r + t.
        digest: a short text that differs between different masks.
    """

    order: TokenOrder
    ranges: Intervals | None
    messages: tuple[tuple[tuple[Tensor, ...], ...], ...]
    rounds: tuple[tuple[int, int], ...]
    digest: str

    def sent(self, rank: int, round_: tuple[int, int]) -> tuple[int, Tensor] | None:
        """Return whom a rank sends keys in a round, and which of its own; None: it sends none."""
        step, number = round_
        to = (rank + step) % self.order.ranks
        messages = self.messages[rank][to]
        return (to, messages[number]) if number < len(messages) else None

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
    needed = [_seen_by(ranges, places, order.tokens) for places in order.places]
    messages = tuple(
        tuple(
            _split(seen[order.places[sender]]) if to != sender else ()
            for to, seen in enumerate(needed)
        )
        for sender in range(order.ranks)
    )
    rounds = [
        (step, number)
        for step in range(1, order.ranks)
        for number in range(
            max(len(messages[r][(r + step) % order.ranks]) for r in range(order.ranks))
        )
    ]
    return Travel(
        order,
        ranges,
        messages,
        tuple(rounds),
        "none" if ranges is None else digest(ranges.start, ranges.stop),
    )


def _seen_by(ranges: Intervals | None, queries: Tensor, tokens: int) -> Tensor:
    """Return which of all keys some of these queries see, in any sequence: Boolean (tokens,)."""
    if ranges is None:
        return torch.full((tokens,), bool(len(queries)))
    return ~ranges.rows(queries).unseen_keys().all(dim=0)


def _split(needed: Tensor) -> tuple[Tensor, ...]:
    """Return the indices of the needed keys, so many to a message."""
    return tuple(part for part in needed.nonzero().flatten().split(KEYS_PER_MESSAGE) if len(part))
