"""The recurrent layers and cells of PyTorch within a target, and the sizes of their states."""

from __future__ import annotations

from torch import nn

Layer = nn.RNNBase | nn.RNNCellBase


def recurrent_layers(module: nn.Module | None) -> list[Layer]:
    """Return the recurrent layers and cells within a module."""
    parts = [] if module is None else list(module.modules())
    return [it for it in parts if isinstance(it, Layer)]


def state_sizes(layer: Layer) -> tuple[int, int]:
    """Return how many states a layer has for each sequence, 0 for the one of a cell, and the size of each."""
    count = layer.num_layers * (1 + layer.bidirectional) if isinstance(layer, nn.RNNBase) else 0
    return count, layer.hidden_size
