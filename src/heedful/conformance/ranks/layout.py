"""Layouts: which part of each argument a rank gets."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Order = Literal["contiguous", "zigzag", "striped"]
Layout = Literal["contiguous", "zigzag", "striped", "replicated", "heads"]

ORDERS: tuple[Order, ...] = ("contiguous", "zigzag", "striped")
LAYOUTS: tuple[Layout, ...] = (*ORDERS, "replicated", "heads")

DESCRIPTIONS: dict[Layout, str] = {
    "contiguous": "each rank has a run of tokens",
    "zigzag": "rank r of N has the chunks r and 2N − 1 − r of 2N chunks of tokens",
    "striped": "rank r of N has the tokens r, r + N, r + 2N, …",
    "replicated": "each rank has all tokens",
    "heads": "each rank has some heads of all tokens",
}


def tokens_for(ranks: int) -> int:
    """Return how many tokens a check on so many ranks takes: at most 16 if they divide into two chunks for each."""
    return max(16 // (2 * ranks), 1) * 2 * ranks


def places(order: Order, tokens: int, rank: int, ranks: int) -> Tensor:
    """Return the indices of a rank's tokens among all.

    >>> places("zigzag", 8, 0, 2)
    tensor([0, 1, 6, 7])
    """
    every = torch.arange(tokens)
    match order:
        case "contiguous":
            return every.view(ranks, -1)[rank]
        case "striped":
            return every.view(-1, ranks)[:, rank]
        case "zigzag":
            chunks = every.view(2 * ranks, -1)
            return torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])


def part(whole: Tensor, axis: int, layout: Layout, rank: int, ranks: int) -> Tensor:
    """Return a rank's part of a tensor along an axis: of tokens in one of the orders, of heads one after another."""
    if layout == "replicated":
        return whole
    order: Order = "contiguous" if layout == "heads" else layout
    return whole.index_select(axis, places(order, whole.shape[axis], rank, ranks))


def part_of_shape(
    whole: Tensor, shape: torch.Size, layout: Layout, tokens: int, rank: int, ranks: int
) -> Tensor | None:
    """Return a rank's part of a result of a shape: the whole, or a part along one axis; None if neither fits."""
    if whole.shape == shape:
        return whole
    if whole.dim() != len(shape):
        return None
    differing = [axis for axis, size in enumerate(shape) if size != whole.shape[axis]]
    if len(differing) != 1 or whole.shape[differing[0]] != shape[differing[0]] * ranks:
        return None
    of_tokens = layout in ORDERS and whole.shape[differing[0]] == tokens
    return part(whole, differing[0], layout if of_tokens else "heads", rank, ranks)
