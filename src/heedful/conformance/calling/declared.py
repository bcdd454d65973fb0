"""The numbers that a module declares about itself, by attributes of conventional names."""

from __future__ import annotations

from torch import nn

from heedful.conformance.calling.configuration import Configuration
from heedful.conformance.calling.names import Names


def declared_number(module: nn.Module | None, names: Names) -> int | None:
    """Return the first positive integer that a module, a submodule or one of their configs has under a name."""
    for part in () if module is None else module.modules():
        for holder in (part, attribute_of(part, "config")):
            unread = isinstance(holder, Configuration) and holder.names_read.isdisjoint(names)
            for name in () if unread else names:
                number = attribute_of(holder, name)
                if isinstance(number, int) and not isinstance(number, bool) and number > 0:
                    return number
    return None


def attribute_of(holder: object, name: str) -> object:
    """Return an attribute; None if there is none, or if a property raises, as one that subclasses are to set."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property of a target may raise anything
        return None
