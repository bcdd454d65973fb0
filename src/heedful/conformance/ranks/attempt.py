"""The runs of a target on all ranks with one layout, beside the run on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heedful.conformance.ranks.layout import Layout, part_of_shape
from heedful.conformance.ranks.locating import Comparison, is_written
from heedful.conformance.ranks.matching import KnownValues, agree, differing
from heedful.conformance.ranks.run import Run, Value, Whole
from heedful.conformance.ranks.weights import Dealt
from heedful.conformance.recording.differences import TOLERANCES

ROUNDED = 1e-5  # what a sum over ranks in float32 may differ by


@dataclass(frozen=True)
class Attempt:
    """The runs of a target on all ranks with one layout.

    Attributes:
        whole: The run on one rank.
        layout: Which part of the arguments each rank got.
        in_sections: Whether weights that hold several were cut in each of them.
        runs: The run of each rank.
        dealt: Which part of each weight each rank has.
    """

    whole: Whole
    layout: Layout
    in_sections: bool
    runs: tuple[Run, ...]
    dealt: tuple[dict[str, Dealt], ...]

    @property
    def ranks(self) -> int:
        return len(self.runs)

    @cached_property
    def tolerance(self) -> float:
        """The largest difference that rounding may cause: that of the dtypes on one rank, or of float32 sums."""
        coarsest = max(
            (TOLERANCES.get(it, 0.0) for it in self.whole.run.coarsest),
            default=TOLERANCES[torch.float64],
        )
        single = any(torch.float32 in run.coarsest for run in self.runs)
        return max(coarsest, ROUNDED if single else 0.0, TOLERANCES[torch.float64])

    @cached_property
    def expected(self) -> list[Tensor]:
        """The first output that each rank should have."""
        first = self.whole.run.outputs[0]
        parts = [
            self._part(first, run.outputs[0].shape, rank) for rank, run in enumerate(self.runs)
        ]
        return [it for it in parts if it is not None]

    @cached_property
    def wrong(self) -> list[Tensor]:
        """Where the first output of each rank is wrong."""
        return [
            differing(run.outputs[0], it, self.tolerance)
            for run, it in zip(self.runs, self.expected, strict=True)
        ]

    @property
    def right_share(self) -> float:
        """The share of entries of the outputs that are right."""
        return 1.0 - sum(it.double().mean().item() for it in self.wrong) / self.ranks

    @property
    def error(self) -> float:
        """The largest difference of the outputs."""
        pairs = zip(self.runs, self.expected, strict=True)
        return max(
            (run.outputs[0] - it).abs().nan_to_num(torch.inf).max().item() for run, it in pairs
        )

    @cached_property
    def largest_gradient(self) -> float:
        """The largest entry of any gradient of the run on one rank."""
        return max((it.abs().max().item() for it in self.gradients), default=1.0)

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the run on one rank."""
        run = self.whole.run
        every = (*run.input_gradients, *run.weight_gradients.values())
        return [it for it in every if it is not None and it.numel()]

    def same_gradient(self, a: Tensor, b: Tensor) -> bool:
        """Check whether two gradients are equal but for rounding, relative to the largest one of all."""
        limit = self.tolerance * self.largest_gradient
        return a.shape == b.shape and bool(((a - b).abs() <= limit).all())

    @property
    def is_distributed(self) -> bool:
        """Whether ranks divide the work: their tokens or heads, their weights, or something on the way."""
        if self.layout != "replicated" or any(it.pieces > 1 for it in self.dealt[0].values()):
            return True
        first, *others = self.runs
        return any(not _same_values(first.forward, it.forward) for it in others)

    @cached_property
    def compared(self) -> Comparison:
        """The values of the forward pass of all ranks beside those of one."""
        return Comparison(self.known(self.whole.run.forward), [run.forward for run in self.runs])

    @property
    def is_shared(self) -> bool:
        """Whether ranks exchange something and most of what they compute is right, so that the layout fits."""
        return self.compared.right_share > 0.5 and any(run.collectives for run in self.runs)

    @property
    def is_replicated(self) -> bool:
        """Whether each rank returns the whole output."""
        return all(it.outputs[0].shape == self.whole.run.outputs[0].shape for it in self.runs)

    def known(self, values: Sequence[Value]) -> KnownValues:
        return KnownValues(values, self.layout, self.whole.tokens, self.ranks, self.tolerance)

    def _part(self, whole: Tensor, shape: torch.Size, rank: int) -> Tensor | None:
        return part_of_shape(whole, shape, self.layout, self.whole.tokens, rank, self.ranks)

    def case(self, rank: int, name: str, received: Tensor, expected: Tensor) -> str:
        """Return the entry of a rank's tensor that differs first."""
        places = differing(received, expected, self.tolerance).nonzero()
        place = tuple(places[0].tolist()) if len(places) else ()
        entry = ", ".join(map(str, place))
        return (
            f"{self.ranks} ranks, {self.whole.tokens} tokens, {self.layout}; rank {rank}, {name}[{entry}]: "
            f"expected {expected[place].item():.6g}, received {received[place].item():.6g}"
        )


def _same_values(a: Sequence[Value], b: Sequence[Value]) -> bool:
    pairs = [
        (one.tensor, other.tensor)
        for one, other in zip(a, b, strict=False)
        if one.tensor is not None and other.tensor is not None and is_written(one)
    ]
    return len(a) == len(b) and all(
        one.shape == other.shape and agree(one, other, 0.0) for one, other in pairs
    )


def largest_difference(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).abs().nan_to_num(torch.inf).max().item()
