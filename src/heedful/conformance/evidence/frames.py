"""The order in which tokens come: one after another, or all those of a frame of a video together."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.recording.target_source import prose_about

FRAMES: re.Pattern[str] = re.compile(r"\bframes?\b|video|temporal")
"""Words of code whose tokens come in frames, in lower case."""


class Order(NamedTuple):
    """The order in which the tokens of a target come.

    Attributes:
        times: (T,) The time of each token. The patches of a frame have the same one.
        by_frames: Whether there are frames, of several tokens each.
    """

    times: Tensor
    by_frames: bool

    @property
    def future(self) -> Tensor:
        """(T, T) Boolean, True where a key comes after a query."""
        return self.times > self.times[:, None]

    @property
    def steps(self) -> int:
        """The number of times."""
        return int(self.times.max()) + 1


def one_after_another(T: int) -> Order:
    """Return the order of the T tokens of a sequence."""
    return Order(torch.arange(T), by_frames=False)


def order_of_tokens(evidence: Evidence) -> Order:
    """Return the order of the tokens of a target that should be causal.

    Where three axes hold the tokens, or two and the code speaks of frames, one of the axes is time. It is the one along
    which the fewest tokens depend on later ones, and the first one if that does not decide.
    """
    T = evidence.inputs.sizes[1]
    grid = evidence.subject.convention.grid_of(T)
    sides = [axis for axis, size in enumerate(grid) if 1 < size < T]
    of_frames = len(grid) > 2 or FRAMES.search(prose_about(evidence.subject.callee)) is not None
    if not sides or not of_frames:
        return one_after_another(T)
    places = torch.cartesian_prod(*map(torch.arange, grid))
    orders = [Order(places[:, axis], by_frames=True) for axis in sides]
    influence = evidence.influence[0, :, 0]
    return min(orders, key=lambda order: int((influence & order.future).sum()))
