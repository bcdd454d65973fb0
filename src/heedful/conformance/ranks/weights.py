"""Weights of a module on one rank, dealt to the modules of many ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from heedful.conformance.ranks.run import UnfitLayoutError

PACKED: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"qkv|c_attn|in_proj|query_key_value|to_qkv", re.IGNORECASE), 3),
    (re.compile(r"kv|key_value", re.IGNORECASE), 2),
)
"""The names of projections that hold several, and how many."""


@dataclass(frozen=True)
class Dealt:
    """The part of a weight that a rank has.

    Attributes:
        axis: The axis that is cut; None if the rank has the whole weight.
        piece: Which piece the rank has.
        pieces: Into how many it is cut.
        sections: How many weights one after another it consists of, each of which is cut.
    """

    axis: int | None = None
    piece: int = 0
    pieces: int = 1
    sections: int = 1

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of a whole weight, or of its gradient."""
        if self.axis is None:
            return whole
        sections = whole.chunk(self.sections, self.axis)
        return torch.cat(
            [it.chunk(self.pieces, self.axis)[self.piece] for it in sections], self.axis
        )


def deal(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    rank: int,
    ranks: int,
    *,
    in_sections: bool,
) -> dict[str, Dealt]:
    """Give a rank's module the weights of the whole one, and return which part it has of each.

    A weight of the same shape is copied. One that is smaller along one axis, as in tensor parallelism, gets its piece;
    or it stays as the module has made it, if it is such a piece already.

    Args:
        module: The rank's module.
        weights: The whole weights by name.
        rank: The rank.
        ranks: How many there are.
        in_sections: Whether weights with names such as "qkv" consist of sections that are cut each.

    Raises:
        UnfitLayoutError: A weight has no counterpart, or is no piece of it by its shape.
    """
    dealt: dict[str, Dealt] = {}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name not in weights:
                raise UnfitLayoutError(f"its parameter {name} does not exist on one rank")
            whole = weights[name].to(parameter.dtype)
            if isinstance(parameter, DTensor):
                parameter.copy_(
                    distribute_tensor(whole, parameter.device_mesh, parameter.placements)
                )
                # Its gradient is compared as a whole.
                cut = any(it.is_shard() for it in parameter.placements)
                dealt[name] = Dealt(pieces=ranks if cut else 1)
                continue
            sections = _sections(name) if in_sections else 1
            dealt[name] = _dealt(name, parameter, whole, rank, ranks, sections)
            parameter.copy_(dealt[name].of(whole))
    return dealt


def is_packed(dealt: Mapping[str, Dealt]) -> bool:
    """Check whether a weight is cut here whose name says that it holds several."""
    return any(it.axis is not None and _sections(name) > 1 for name, it in dealt.items())


def _dealt(
    name: str, parameter: Tensor, whole: Tensor, rank: int, ranks: int, sections: int
) -> Dealt:
    if parameter.shape == whole.shape:
        return Dealt()
    sizes = list(zip(parameter.shape, whole.shape, strict=False))
    cut = [axis for axis, (own, all_) in enumerate(sizes) if own != all_]
    axis = cut[0] if cut else 0
    own, full = sizes[axis] if sizes else (0, 0)
    pieces = full // own if own else 0
    fits = parameter.dim() == whole.dim() and len(cut) == 1 and own * pieces == full
    if not fits or ranks % pieces:
        raise UnfitLayoutError(
            f"its parameter {name} has the shape {tuple(parameter.shape)}, and {tuple(whole.shape)} on one rank"
        )
    if full % (pieces * sections):
        sections = 1
    usual = Dealt(axis, rank * pieces // ranks, pieces, sections)
    # From the same random state, a smaller weight begins like the whole one, so that the first piece tells nothing.
    made = (
        Dealt(axis, piece, pieces, count)
        for count in {1, _sections(name)}
        if full % (pieces * count) == 0
        for piece in range(1, pieces)
    )
    return next((it for it in made if torch.equal(it.of(whole), parameter)), usual)


def _sections(name: str) -> int:
    return next((count for pattern, count in PACKED if pattern.search(name)), 1)
