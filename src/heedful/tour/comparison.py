"""Whether two routes to the same tensor agree, to rounding."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Comparison:
    """One route to a quantity, against another.

    Attributes:
        quantity: what both compute: "weights".
        route: the one that is checked.
        against: the one it is checked against.
        difference: the largest absolute difference of two entries; NaN if one of them is.
        tolerance: what rounding explains.
    """

    quantity: str
    route: str
    against: str
    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        return self.difference <= self.tolerance  # false for NaN, too


def compare(
    quantity: str,
    against: tuple[str, Tensor],
    *routes: tuple[str, Tensor],
    tolerance: float,
) -> list[Comparison]:
    """Compare each route, a name and its result, with the first one."""
    name, expected = against
    return [
        Comparison(quantity, route, name, largest_difference(result, expected), tolerance)
        for route, result in routes
    ]


def largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference of two tensors of one shape; equal infinities differ by 0."""
    assert one.shape == other.shape, f"{tuple(one.shape)} beside {tuple(other.shape)}"
    if one.numel() == 0:
        return 0.0
    differences = torch.where(one == other, 0.0, (one - other).abs())
    return differences.max().item()


def rounding(terms: int, *, score: float = 0.0, value: float = 1.0) -> float:
    """How far apart rounding may bring two right results of float32 attention.

    A sum of n terms taken in two orders differs by about √n units in the last place of its largest partial
    sum. In a score that is an absolute error, softmax makes it a relative one of each weight, and the weighted
    sum scales it by the values. Eight times that leaves no room for a wrong route on ordinary numbers.

    Args:
        terms: how many products a dot product adds up.
        score: the largest absolute score.
        value: the largest absolute value that the weights average.
    """
    return 8 * torch.finfo(torch.float32).eps * terms**0.5 * (1 + score) * value
