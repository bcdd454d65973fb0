"""What a rank of training does alone and with the others, as one process does it: `ManyRanks` is of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from torch import Tensor, nn

from heedful.gpt.data.batches import Batch
from heedful.gpt.train.loss import SummedLoss
from heedful.gpt.train.mesh import Mesh

T = TypeVar("T")


class OneRank:
    """A model in one process.

    Attributes:
        mesh: the sizes of the mesh.
        rank: the number of this rank; the first one alone prints and writes results.
    """

    mesh: Mesh = Mesh()
    rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the first rank."""
        return self.rank == 0

    def first_does(self, work: Callable[[], T]) -> T | None:
        """Do something on the first rank, while the others wait; these return None."""
        return work()

    def told(self, text: str) -> str:
        """Return the text that the first rank passes."""
        return text

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set on any rank."""
        return flag

    def total(self, number: float) -> float:
        """Return the sum of the numbers that the parts of a batch have."""
        return number

    def part(self, batch: Batch) -> Batch:
        """Return the part of a batch that this rank computes. Its documents are those of all tokens of its rows."""
        return batch

    def computing(self, batch: Batch) -> AbstractContextManager[None]:
        """Return the context in which this rank's part of a batch is computed, forward and backward."""
        return nullcontext()

    def distribute(self, objective: SummedLoss) -> None:
        """Leave this rank its part of a model that is the same on all ranks."""

    def whole(self, tensor: Tensor) -> Tensor:
        """Return all of a tensor of which each rank has a part."""
        return tensor

    def clip(self, parameters: Iterable[nn.Parameter], most: float) -> None:
        """Scale all gradients down to this norm, if theirs is larger."""
        nn.utils.clip_grad_norm_(parameters, most)


def mesh_of(tensor: Tensor) -> object:
    """Return the mesh that a tensor is distributed over; None if it is not."""
    return getattr(tensor, "device_mesh", None)
