"""A summary of a tensor that is too large to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful import drawing
from heedful.shapes import times

SAMPLES_PER_DIMENSION: int = 16
SAMPLES_PER_LEADING_DIMENSION: int = 4


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """The shape, range and a sample of a tensor that is too large to keep.

    Of a complex tensor, the numbers describe the magnitude. If the entries cannot be read, the numbers are NaN and the
    sample is None: this is the case for meta, sparse and nested tensors, and within a function transform such as
    `torch.vmap`.

    Attributes:
        shape: the shape of the tensor.
        dtype: the dtype of the tensor.
        minimum, maximum: the range of all entries except NaN; NaN if there are none.
        mean, std: the mean and the population standard deviation of the finite entries; NaN if there are none.
        nans: the number of NaN entries.
        sample: every ``strides[i]``-th entry along dimension i.
        strides: the strides of the sample.
        of_sample: whether the numbers describe only the sampled rows, because no other rows were computed.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    minimum: float = float("nan")
    maximum: float = float("nan")
    mean: float = float("nan")
    std: float = float("nan")
    nans: int = 0
    sample: Tensor | None = None
    strides: tuple[int, ...] = ()
    of_sample: bool = False

    def __repr__(self) -> str:
        return f"Summary({self})"

    def _repr_html_(self) -> str:
        """Return the numbers and a heat map of the sample, for a notebook."""
        if self.sample is None:
            return f"<p>{self}</p>"
        return f"<style>{drawing.STYLE}</style>{drawing.heat_map(self.sample, caption=str(self))}"

    def __str__(self) -> str:
        if self.sample is None:
            return "The entries of this tensor cannot be read."
        rows = "All entries of the sampled rows" if self.of_sample else "All entries"
        return (
            f"A sample of {times(self.shape)} entries: every {times(self.strides)}th. {rows} lie between "
            f"{self.minimum:.4g} and {self.maximum:.4g}; mean {self.mean:.4g}, "
            f"standard deviation {self.std:.4g}, {self.nans} NaN."
        )

    @classmethod
    def of(cls, tensor: Tensor) -> Summary:
        """Summarize a strided tensor of any shape whose entries can be read."""
        numbers = tensor.abs() if tensor.is_complex() else tensor
        present = numbers[~numbers.isnan()]
        finite = present[present.isfinite()].double()
        strides = sample_strides(tensor.shape)
        return cls(
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            minimum=present.min().item() if present.numel() else float("nan"),
            maximum=present.max().item() if present.numel() else float("nan"),
            mean=finite.mean().item() if finite.numel() else float("nan"),
            std=finite.std(correction=0).item() if finite.numel() else float("nan"),
            nans=numbers.numel() - present.numel(),
            sample=tensor[tuple(slice(None, None, stride) for stride in strides)].clone(),
            strides=strides,
        )


def sample_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return strides that keep the sample small. Most of it lies in the last two dimensions, which are drawn."""
    leading = max(len(shape) - 2, 0)
    limits = [1] * max(leading - 2, 0) + [SAMPLES_PER_LEADING_DIMENSION] * min(leading, 2)
    limits += [SAMPLES_PER_DIMENSION] * (len(shape) - leading)
    return tuple(max(-(-size // limit), 1) for size, limit in zip(shape, limits, strict=True))
