"""Dropout of attention weights, as a pure function of (seed, batch, head, query, key).

The same seed drops the same weights in every kernel, in blocks of any size, on any number of threads and processes,
and the backward pass need not store what the forward pass dropped.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from heedful.sharded import first_row

_WORD = 0xFFFFFFFF
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B  # odd multipliers of a 32-bit mixer with low bias
_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive keys over the words


class Placement(NamedTuple):
    """Where the weights of a part stand among all, so that it drops the same ones.

    Attributes:
        seed: int64 (), the seed of all parts.
        queries: int64 (Tq,), the place of each query among all.
        keys: int64 (Tk,), the place of each key among all.
        first_head: the place of the first query head among all.
    """

    seed: Int64[Tensor, ""]
    queries: Int64[Tensor, " Tq"]
    keys: Int64[Tensor, " Tk"]
    first_head: int


def draw_seed() -> Int64[Tensor, ""]:
    """Draw a seed of 63 bits, int64 (), from torch's default generator, so that `torch.manual_seed` determines it.

    If other ranks have the batch entries before those of this thread, the seed is that for its own.
    """
    seed = torch.randint(2**63 - 1, ())
    first = first_row()
    return seed_of_rows(seed, first) if first else seed


def seed_of_rows(seed: Int64[Tensor, ""], first: int) -> Int64[Tensor, ""]:
    """Return the seed, of 64 bits, by which batch entry b drops what entry first + b drops by this one."""
    low, high = (seed + first) & _WORD, ((seed >> 32) + first) & _WORD  # `_row` adds b to each
    return (high << 32) | low


def kept(
    seed: int | Tensor, p: float, b: Tensor, h: Tensor, q: Tensor, k: Tensor
) -> Bool[Tensor, " ..."]:
    """Return which weights dropout with probability p keeps: Boolean, of the index tensors' common shape.

    Args:
        seed: 64 bits; a tensor () in a traced graph, where its value is unknown.
        p: the probability of dropping a weight, with a resolution of 2**-32.
        b, h, q, k: int64 indices of batch entry, query head, query and key, broadcastable.
    """
    row = _row(seed & _WORD, b, h, q)
    tweak = _row((seed >> 32) & _WORD, b, h, q)
    word = (k * _GOLDEN + row) & _WORD
    word = ((word ^ (word >> 16)) * _FIRST) & _WORD
    word = word ^ tweak  # a second word of the row: two rows never share a shifted pattern
    word = ((word ^ (word >> 15)) * _SECOND) & _WORD
    word = word ^ (word >> 16)
    return word >= round(p * 2**32)


def _row(word: int | Tensor, b: Tensor, h: Tensor, q: Tensor) -> Tensor:
    """Return a 32-bit word for each (batch, head, query), in int64."""
    mixed = _mix((b + word + _GOLDEN) & _WORD)
    mixed = _mix((h + mixed + _GOLDEN) & _WORD)
    return _mix((q + mixed + _GOLDEN) & _WORD)


def _mix(word: Tensor) -> Tensor:
    """Apply a bijection of 32-bit words that flips each output bit with probability near one half."""
    word = ((word ^ (word >> 16)) * _FIRST) & _WORD
    word = ((word ^ (word >> 15)) * _SECOND) & _WORD
    return word ^ (word >> 16)
