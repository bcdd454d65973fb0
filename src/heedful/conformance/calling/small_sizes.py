"""Sizes with which a class is built whose defaults would make it too large for a check."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from heedful.conformance.calling import names
from heedful.conformance.calling.conventional import (
    OTHER_WIDTHS,
    SIZES,
    conventional_values,
    similar_name,
    value_by_name,
)

LARGE = 1024  # a default width from which on a module is too large for a check
MANY, LATENTS = 64, 11  # learned rows of a model that take long, and as many as suffice
FEW = 4  # layers of such a module, enough for patterns such as "every second layer"
HEAVY = 700_000  # the squared widths of all layers from which on it is too large, too

LONG, SHORT = 4096, 128  # numbers of tokens whose square is too large for a check, and is not


def small_sizes(cls: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return conventional sizes in place of a constructor's defaults, if these make it too large for a check."""
    parameters = inspect.signature(cls).parameters
    defaults = {name: it.default for name, it in parameters.items() if type(it.default) is int}
    conventional = conventional_values({**arguments, "": OTHER_WIDTHS[-1]})
    known = {name: name if name in SIZES else similar_name(name) for name in defaults}
    sizes = [name for name in defaults if name not in arguments and known[name] in SIZES]
    width = max((defaults[name] for name in sizes), default=0)
    numbers = [arguments.get(name, defaults.get(name)) for name in names.LAYERS]
    depth = max((it for it in numbers if isinstance(it, int)), default=1)
    many = [it for it in names.LATENTS if defaults.get(it, 0) >= MANY and it not in arguments]
    latents = dict.fromkeys(many, LATENTS)
    if width < LARGE and width**2 * depth < HEAVY:
        return latents
    layers = [name for name in names.LAYERS if name in defaults and name not in arguments]
    few = {name: min(defaults[name], FEW) for name in layers}
    return {**few, **latents, **{name: value_by_name(name, conventional) for name in sizes}}


def shorter_contexts(
    cls: Callable[..., Any], built: Any, arguments: Mapping[str, Any]
) -> dict[str, int]:
    """Return smaller numbers of tokens in place of a constructor's defaults, whose squares are buffers of a module."""
    defaults = {name: it.default for name, it in inspect.signature(cls).parameters.items()}
    is_constructed = isinstance(built, nn.Module) and "_buffers" in vars(built)
    buffers = built.buffers() if is_constructed else ()
    squares = {
        it.shape[-1] for it in buffers if it.dim() > 1 and it.shape[-1] == it.shape[-2] >= LONG
    }
    return {
        name: SHORT
        for name in names.MAX_LENGTHS
        if name not in arguments and defaults.get(name) in squares
    }
