"""The numbers that a module declares about itself, by attributes of conventional names."""

from __future__ import annotations

from torch import nn

from heedful.conformance.calling.names import Names


def declared_number(module: nn.Module | None, names: Names) -> int | None:
    """Return the first positive integer that a module, a submodule or one of their configs has under a name."""
    for part in () if module is None else module.modules():
        for holder in (part, getattr(part, "config", None)):
            for name in names:
                number = getattr(holder, name, None)
                if isinstance(number, int) and not isinstance(number, bool) and number > 0:
                    return number
    return None
