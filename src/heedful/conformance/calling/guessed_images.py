"""Images for models of whole images, such as a vision transformer, whose results have no row for each pixel."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
from torch import nn

from heedful.conformance.calling import names
from heedful.conformance.calling.convention import IMAGES, CallingConvention
from heedful.conformance.calling.conventional import PATCH
from heedful.conformance.calling.discovery import SEARCH_SECONDS, first_that_works
from heedful.conformance.calling.layouts import takes_feature_maps
from heedful.conformance.calling.target import Target, made_parameters
from heedful.conformance.calling.time_limit import TimeLimit

BATCH = 2
COLORS, GRAY = 3, 1  # channels of an image
SIDES = (32, 28, 64, 16)  # of images whose sides nothing states
MAX_SIDE = 64  # of an image whose pixels are not too many for a check
LARGE_SIDE = 64  # a default side from which on an image has too many patches for a check
GRID = 4  # patches along each side of an image that is small enough
MAX_IMAGES = 12  # that are tried
OF_IMAGES: re.Pattern[str] = re.compile(r"\s*\w+ \w+ \(h\w* \w+\) \(w\w* \w+\)")
"""The beginning of a pattern that cuts an image into patches, as "b c (h p1) (w p2) -> b (h w) (p1 p2 c)"."""


def takes_images(target: Target) -> bool:
    """Check whether a target takes one argument, and has a convolution of images.

    That is one of three channels, or of one channel if it is the first layer; or a linear layer of patches.
    """
    return target.module is not None and len(target.required) == 1 and bool(_channels(target))


def find_image_convention(target: Target) -> tuple[CallingConvention, torch.dtype] | None:
    """Return the convention of a call with images, as `find_convention` does; None if no image works."""
    images = product(_channels(target), _sides(target))
    conventions = [
        CallingConvention(
            IMAGES[0], target.required, (channel,), fixed_sizes=(BATCH, side**2), pooled=True
        )
        for channel, side in images
    ]
    return _first_that_works(target, conventions)


def find_bag_convention(target: Target) -> tuple[CallingConvention, torch.dtype] | None:
    """Return the convention of a call with a bag of images, which are its tokens; None if no image works."""
    images = product(_channels(target), _sides(target))
    conventions = [
        CallingConvention(
            "(T, C)", target.required, (channel, side, side), guessed=True, pooled=True
        )
        for channel, side in images
    ]
    return _first_that_works(target, conventions)


def _first_that_works(
    target: Target, conventions: list[CallingConvention]
) -> tuple[CallingConvention, torch.dtype] | None:
    caller = first_that_works(target, conventions[:MAX_IMAGES], [], TimeLimit(SEARCH_SECONDS))
    return None if caller is None else (caller.convention, caller.dtype)


def small_images(target: Any, arguments: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Yield sizes of images of few pixels for a constructor whose defaults are for large ones; nothing for others."""
    parameters = inspect.signature(target).parameters if inspect.isclass(target) else {}
    defaults = {name: it.default for name, it in parameters.items() if name not in arguments}
    sizes = {name: it for name, it in defaults.items() if type(it) is int}
    sides = [it for it in names.IMAGE_SIDES if sizes.get(it, 0) >= LARGE_SIDE]
    for side, patch in product(sides[:1], (it for it in names.PATCHES if it in sizes)):
        yield {side: GRID * PATCH, patch: PATCH}
        yield {side: GRID * sizes[patch]}


def _channels(target: Target) -> list[int]:
    """Return the numbers of channels that the images of a target may have; none if it takes no images."""
    assert target.module is not None
    leaves = [part for part in target.module.modules() if not list(part.children())]
    taken = [part.in_channels for part in leaves if isinstance(part, nn.Conv2d)]
    of_gray = isinstance(leaves[0], nn.Conv2d) and leaves[0].in_channels == GRAY
    patches = _linear_patches(target)
    found = {COLORS: COLORS in taken, GRAY: of_gray, **{channels: True for channels, _ in patches}}
    return [channels for channels, is_taken in found.items() if is_taken]


def _linear_patches(target: Target) -> list[tuple[int, int]]:
    """Return the channels and the sides of patches that a linear layer may take, if the code names height and width."""
    assert target.module is not None
    if not takes_feature_maps(target.callee) and not _rearranges_images(target.module):
        return []
    layers = [it for it in target.module.modules() if isinstance(it, nn.Linear)]
    sizes = product((COLORS, GRAY), dict.fromkeys(it.in_features for it in layers))
    sides = ((channels, math.isqrt(size // channels), size) for channels, size in sizes)
    return [
        (channels, side)
        for channels, side, size in sides
        if side > 1 and channels * side**2 == size
    ]


def _rearranges_images(module: nn.Module) -> bool:
    """Check whether a layer of einops in a module takes four axes, of which two are made of heights and widths."""
    patterns = (getattr(part, "pattern", None) for part in module.modules())
    return any(OF_IMAGES.match(it) for it in patterns if isinstance(it, str))


def _sides(target: Target) -> list[int]:
    """Return the sides that an image may have: those that a target keeps, then those that fit its tables."""
    assert target.module is not None
    parts = list(target.module.modules())
    own = [part for part in parts if not type(part).__module__.startswith("torch.")]
    kept = [vars(part).get(name) for part in own for name in names.IMAGE_SIDES]
    firsts = (it[0] if isinstance(it, tuple | list) else it for it in kept)
    strides = [part.stride[0] for part in parts if isinstance(part, nn.Conv2d)]
    patches = [*(it for it in strides if it > 1), *(side for _, side in _linear_patches(target))]
    of_tables = (n * (patches or [1])[0] for n in _grids(target.module))
    sides = (*firsts, *of_tables, *SIDES)
    return [it for it in dict.fromkeys(sides) if type(it) is int and 1 < it <= MAX_SIDE]


def _grids(module: nn.Module) -> Iterator[int]:
    """Yield the sides of square grids of which a module has a row for each place, and perhaps one for the class."""
    for parameter in made_parameters(module):
        for size in parameter.shape[:-1]:
            for places in (size - 1, size):
                if places > 3 and math.isqrt(places) ** 2 == places:
                    yield math.isqrt(places)
