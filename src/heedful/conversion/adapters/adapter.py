"""The interface that describes one type of attention module to the conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conversion.weight_map import WeightMap


@dataclass(frozen=True)
class Adapter:
    """Functions that recognize, read, write and call one type of attention module.

    Modules are recognized by their attributes rather than their class, so that any user's module with the same names
    can be converted. The certificate reveals a wrong match. `Any` stands for a module that matches.

    Attributes:
        name: the name of the type in messages.
        matches: (module) → whether the module is of this type.
        weight_map: (module) → its settings and the parameters that store its weights. Raises `ArgumentError` for an
            option that no other type supports.
        call: (module, x (B, T, d_in), causal) → output (B, T, d_out).
        call_text: (module, causal) → the same call as Python source.
    """

    name: str
    matches: Callable[[nn.Module], bool]
    weight_map: Callable[[Any], WeightMap]
    call: Callable[[Any, Tensor, bool], Tensor]
    call_text: Callable[[Any, bool], str]


@dataclass(frozen=True)
class AdaptedModule:
    """A module with the adapter that matches it."""

    module: nn.Module
    adapter: Adapter
    weight_map: WeightMap


def future_mask(tokens: int, device: torch.device) -> Tensor:
    """Return the Boolean (T, T) mask that is True for future keys, in the polarity of PyTorch's modules."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(diagonal=1)
