"""The conventional values of sizes and settings, by the names that code gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

import torch

from heedful.conformance.calling import names
from heedful.conformance.calling.names import Names

# All different from each other and from the 3 sequences of 7 tokens of the evidence, so that axes are unambiguous.
WIDTH, HEADS, KEY_HEADS, HEAD_SIZE, CONTEXT, WINDOW = 24, 4, 2, 6, 16, 5
EVEN_SIZE = 10  # of 8 heads, whose width of 48 could be that of patches of an image, 3 × 4 × 4
OTHER_WIDTHS = (32, 64, 96, 128)  # that are tried if a constructor rejects the usual one
EPSILON = 1e-6
PATCH, SHIFT, KERNEL = 2, 2, 3
IMAGE_SIDE = 2 * WINDOW  # of an image that is cut into windows
IMAGE_LENGTHS = (16, 64)  # pixels of squares that most strides and windows divide
SOFT_CAP = 5.0  # small enough that the caps of hidden scores show in the weights
DROPOUT = 0.25  # large enough that a few hundred weights show how it acts
GUESSES: tuple[Any, ...] = (
    HEADS,
    1,
    0.5,
    True,
    (2, 2),
    None,
)  # for parameters that nothing is known of

VALUES: Mapping[Names, Any] = {
    names.WIDTHS: WIDTH,
    names.HEADS: HEADS,
    names.KEY_HEADS: KEY_HEADS,
    names.HEAD_SIZES: HEAD_SIZE,
    names.MAX_LENGTHS: CONTEXT,
    names.WINDOWS: WINDOW,
    names.SOFT_CAPS: SOFT_CAP,
    names.DROPOUTS: DROPOUT,
    names.MLP_WIDTHS: 48,
    names.VOCABULARY_SIZES: 37,
    names.LAYERS: 2,
    names.MAX_BATCHES: 4,
    names.LAYER_INDICES: 0,
    names.ROTARY_BASES: 10_000.0,
    names.ROTARY_SIZES: HEAD_SIZE,
    names.STEADY_SIZES: HEAD_SIZE,
    names.ROTARY_PARTS: 1.0,  # others may leave an odd number of features
    names.BIASES: False,
    names.BATCH_FIRST: True,
    names.TOKEN_AXIS: -2,
    names.PIXEL_AXES: 2,
    names.IMAGE_SIDES: IMAGE_SIDE,
    names.PATCHES: PATCH,
    names.SHIFTS: SHIFT,
    names.KERNELS: KERNEL,
    names.DEVICES: torch.device("cpu"),
    names.DTYPES: torch.float32,
}
AXES = range(-4, 4)  # numbers of axes, which may be called `dim` as a width is
SIZES = frozenset((*names.WIDTHS, *names.HEADS, *names.KEY_HEADS, *names.HEAD_SIZES))
"""The names of sizes on which the number of weights depends."""


def conventional_values(
    arguments: Mapping[str, Any], defaults: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Return a value for every conventional name, consistent with the given ones: d_model=10 gets 2 heads of size 5.

    Args:
        arguments: Values that are fixed.
        defaults: Values that are used where `arguments` has none.
    """

    def size(role: Names, *sources: Mapping[str, Any]) -> int | None:
        values = (source.get(name) for source in sources for name in role)
        return next((value for value in values if isinstance(value, int) and value > 0), None)

    heads = size(names.HEADS, arguments, defaults)
    widths = {name: it for name, it in defaults.items() if name != "dim" or it not in AXES}
    width = size((*names.WIDTHS, ""), arguments, widths)
    head_size, key_heads = size(names.HEAD_SIZES, arguments), size(names.KEY_HEADS, arguments)
    if heads is None:
        heads = next(n for n in (HEADS, 3, 2, 5, 1) if (width or WIDTH) % n == 0)
    if width is None:
        fits = head_size is None and WIDTH % heads == 0
        chosen = WIDTH // heads if fits else head_size or HEAD_SIZE
        is_odd = fits and chosen % 2 == 1  # a rotation takes pairs of features
        width = heads * (EVEN_SIZE if is_odd else chosen)
    if key_heads is None:
        key_heads = next(n for n in (KEY_HEADS, 3, 1) if heads % n == 0)
    values: dict[Names, Any] = {
        **VALUES,
        names.WIDTHS: width,
        names.HEADS: heads,
        names.KEY_HEADS: key_heads,
        names.HEAD_SIZES: width // heads if head_size is None else head_size,
    }
    return {**{name: value for role, value in values.items() for name in role}, **arguments}


def value_by_name(name: str, conventional: Mapping[str, Any]) -> Any:
    """Return the value that the name of a parameter or of a configuration's field suggests; None if there is none."""
    if name in conventional:
        return conventional[name]
    words = name.lower()
    if not {*re.findall(r"[a-z]+", words)}.isdisjoint(names.EPSILON_WORDS):
        return EPSILON
    if any(word in words for word in names.FLAG_WORDS):
        return False
    known = similar_name(name)
    return None if known is None else conventional[known]


def similar_name(name: str) -> str | None:
    """Return the conventional name that an unknown one suggests: "context_length" for "max_seq"."""
    if names.OF_KEY_HEADS.search(name.lower()):
        return names.KEY_HEADS[0]
    return next((known for word, known in names.WORDS.items() if word in name.lower()), None)


def value_by_type(hint: Any, conventional: Mapping[str, Any]) -> Any:
    """Return a value of an annotated type; None if the type suggests none."""
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    values = {bool: False, int: conventional[names.HEADS[0]], float: 1.0}
    return values.get(hint)
