"""The queries and keys that a mask is lowered for, and how they are aligned."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

Align = Literal["start", "end"] | None


class Grid(NamedTuple):
    """The queries and keys that a mask is lowered for.

    Attributes:
        batch: the number of batch entries.
        Tq: the number of queries.
        Tk: the number of keys.
        shift: the position of query 0 among the keys.
        device: where the mask's tensors are built.
    """

    batch: int
    Tq: int
    Tk: int
    shift: int
    device: torch.device

    def positions(self) -> Int64[Tensor, "1 Tq"]:
        """Return the position i of each query among the keys: int64 (1, Tq)."""
        return torch.arange(self.shift, self.shift + self.Tq, device=self.device).unsqueeze(0)
