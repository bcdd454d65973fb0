"""Feature maps for a module that has a row of a table for each of their pixels, as one that pools an image has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations

import torch
from torch import nn

from heedful.conformance.calling.convention import IMAGES, CallingConvention
from heedful.conformance.calling.discovery import SEARCH_SECONDS, first_that_works
from heedful.conformance.calling.guessed_images import BATCH
from heedful.conformance.calling.target import Target, tables
from heedful.conformance.calling.time_limit import TimeLimit

SMALL_SIDE = 4  # of a feature map, in pixels
MAX_SIDE = 24  # of one whose pixels are not too many for a check
MAX_TABLES = 4  # that are tried


def sides_of_maps(target: Target) -> list[int]:
    """Return the sides of the feature maps for whose pixels a target has tables; none if it takes several arguments."""
    if target.module is None or len(target.required) != 1:
        return []
    return [side for side, _ in _tables(target.module)]


def find_map_convention(target: Target) -> tuple[CallingConvention, torch.dtype] | None:
    """Return the convention of a call with feature maps, as `find_convention` does; None if no map works.

    The result may have no row for each pixel.
    """
    assert target.module is not None
    conventions = [
        CallingConvention(
            IMAGES[0], target.required, (channels,), fixed_sizes=(BATCH, side**2), pooled=True
        )
        for side, channels in dict.fromkeys(_tables(target.module))
    ]
    caller = first_that_works(target, conventions[:MAX_TABLES], [], TimeLimit(SEARCH_SECONDS))
    return None if caller is None else (caller.convention, caller.dtype)


def _tables(module: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield the sides and the channels of square maps that have a row for each pixel in a table of a user's module.

    The table may have one row more, for the mean of the pixels or for the class.
    """
    for table in tables(module):
        for rows, channels in permutations(table.shape):
            for pixels in (rows - 1, rows):
                side = math.isqrt(pixels)
                if side**2 == pixels and 1 < side <= MAX_SIDE:
                    yield side, channels
