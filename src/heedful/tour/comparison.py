"""Comparison of routes to the same tensor."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Comparison:
    """A comparison of two routes to a quantity.

    Attributes:
        quantity: What both routes compute, such as "weights".
        route: The route that is checked.
        against: The route that it is compared with.
        difference: The largest absolute difference of two entries. NaN: a result contains NaN.
        tolerance: The difference that rounding explains.
    """

    quantity: str
    route: str
    against: str
    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """True if the difference is within the tolerance. NaN is not."""
        return self.difference <= self.tolerance


def compare(
    quantity: str,
    against: tuple[str, Tensor],
    *routes: tuple[str, Tensor],
    tolerance: float,
) -> list[Comparison]:
    """Compare the result of each route with that of the first one.

    Args:
        quantity: What all routes compute.
        against: The name and the result of the first route.
        routes: The names and the results of the other routes.
        tolerance: The difference that rounding explains.

    >>> one, other = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])
    >>> compare("weights", ("loops", one), ("matmul", other), tolerance=1e-6)[0].difference
    0.5
    """
    name, expected = against
    return [
        Comparison(quantity, route, name, largest_difference(result, expected), tolerance)
        for route, result in routes
    ]


def largest_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference of two tensors of the same shape. Equal infinities differ by 0."""
    assert one.shape == other.shape, f"{tuple(one.shape)} and {tuple(other.shape)}"
    if one.numel() == 0:
        return 0.0
    differences = torch.where(one == other, 0.0, (one - other).abs())
    return differences.max().item()


def rounding_tolerance(terms: int, *, score: float = 0.0, value: float = 1.0) -> float:
    """Return the largest difference that rounding explains between two right results of float32 attention.

    Two sums of n terms in different orders differ by about √n units in the last place of their largest partial sum.
    This absolute error of a score becomes a relative error of its weight, and the weighted sum scales it by the
    values. The tolerance is eight times this estimate, which is still too small for a wrong route to pass on ordinary
    numbers.

    Args:
        terms: The number of terms in a dot product.
        score: The largest absolute score.
        value: The largest absolute value in the weighted sum.
    """
    return 8 * torch.finfo(torch.float32).eps * terms**0.5 * (1 + score) * value
