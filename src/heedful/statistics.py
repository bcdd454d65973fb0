"""The statistics of attention weights, as kernels compute them."""

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Statistics(NamedTuple, Generic[T]):
    """What is computed of the weights, before it is made into a `Summary`: tensors, or their shapes.

    All numbers are float32 or better, and keys are int64. What was not wanted has no numbers.

    Attributes:
        lse: (B, Hq, Tq), the logarithms of the normalizers.
        mass: (B, Hq, Tq), the sum of each query's weights.
        entropy: (B, Hq, Tq), the sum of −w ln w.
        largest: (B, Hq, Tq), the largest weight.
        distance: (B, Hq, Tq), the sum of w · |query's place − key|.
        received: (B, Hq, Tk), the sum of each key's weights.
        top_weights: (B, Hq, Tq, top_k), the largest weights, in descending order; 0 if there are fewer keys.
        top_keys: (B, Hq, Tq, top_k), their keys; −1 likewise.
        region_mass: (B, Hq, Tq, R), the sum of the weights in each region.
        cell_sums: (B, Hq, rows, columns), the sum of the weights in each cell.
        cell_maxima: (B, Hq, rows, columns), the largest weight in each cell.
    """

    lse: T
    mass: T
    entropy: T
    largest: T
    distance: T
    received: T
    top_weights: T
    top_keys: T
    region_mass: T
    cell_sums: T
    cell_maxima: T
