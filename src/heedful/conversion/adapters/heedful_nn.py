"""The adapter for `heedful.nn.MultiHeadAttention`, which has the textbook's layers and further options."""

from __future__ import annotations

from torch import nn

from heedful.conversion.adapters.adapter import Adapter
from heedful.conversion.adapters.textbook import call, call_text, linear_slices
from heedful.conversion.weight_map import AttentionSettings, WeightMap
from heedful.errors import ArgumentError
from heedful.nn import MultiHeadAttention


def matches(module: nn.Module) -> bool:
    """Check whether a module is a `heedful.nn.MultiHeadAttention`."""
    return isinstance(module, MultiHeadAttention)


def weight_map(module: MultiHeadAttention) -> WeightMap:
    """Return the module's settings and parameter slices."""
    check_options(module)
    settings = AttentionSettings(
        module=type(module).__name__,
        num_heads=module.num_heads,
        causal=module.causal,
        dropout=module.dropout,
    )
    return WeightMap(settings, linear_slices(module))


def check_options(module: MultiHeadAttention) -> None:
    """Raise `ArgumentError` for options that only `heedful.nn.MultiHeadAttention` supports."""
    for option in ("d_context", "rotary", "window", "softcap"):
        if getattr(module, option) is not None:
            raise ArgumentError(
                option,
                expected="None: plain self-attention among the input tokens",
                received=f"{getattr(module, option)!r} in {type(module).__name__}",
                remedy="No other type of module supports this option. Build this one without it, or use "
                "load_state_dict to fill another heedful.nn.MultiHeadAttention with the same options.",
            )


ADAPTER: Adapter = Adapter("heedful.nn.MultiHeadAttention", matches, weight_map, call, call_text)
