"""The adapters for modules with the textbook's names W_query, W_key and W_value.

The three may be parameters, layers, or layers of each head in a wrapper.
"""

from __future__ import annotations

from torch import Tensor, nn

from heedful.conversion.adapters.adapter import Adapter
from heedful.conversion.weight_map import (
    QKV,
    AttentionSettings,
    ParameterSlice,
    WeightMap,
    WeightSlices,
    layer_slices,
    output_slices,
)

W_NAMES: dict[str, str] = {role: f"W_{role}" for role in QKV}


def has_parameters(module: nn.Module) -> bool:
    """Check whether the module is a single head whose weights are parameters."""
    return not hasattr(module, "num_heads") and all(
        isinstance(getattr(module, name, None), nn.Parameter) for name in W_NAMES.values()
    )


def parameter_weight_map(module: nn.Module) -> WeightMap:
    """Return the settings and parameter slices of a head whose weights are parameters (d_in, d_out)."""
    slices = {role: (ParameterSlice(name, transposed=True),) for role, name in W_NAMES.items()}
    return WeightMap(settings_of(module, num_heads=1), slices)


def has_layers(module: nn.Module) -> bool:
    """Check whether the module's projections are `nn.Linear` layers."""
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in W_NAMES.values())


def linear_weight_map(module: nn.Module) -> WeightMap:
    """Return the settings and parameter slices of a module whose projections are layers."""
    settings = settings_of(module, num_heads=getattr(module, "num_heads", 1))
    return WeightMap(settings, linear_slices(module))


def linear_slices(module: nn.Module) -> WeightSlices:
    """Return the slices of the layers W_query, W_key, W_value and, if there is one, out_proj."""
    slices: WeightSlices = {}
    for role, name in W_NAMES.items():
        slices |= layer_slices(module, name, role)
    return slices | output_slices(module)


def is_wrapper(module: nn.Module) -> bool:
    """Check whether the module is a wrapper whose heads have layers."""
    heads = getattr(module, "heads", None)
    return isinstance(heads, nn.ModuleList) and len(heads) > 0 and all(map(has_layers, heads))


def wrapper_weight_map(module: nn.Module) -> WeightMap:
    """Return the settings and parameter slices of a wrapper, with the slices of its heads in order."""
    heads = list(module.get_submodule("heads").children())
    slices: WeightSlices = {}
    for index in range(len(heads)):
        for role, name in W_NAMES.items():
            for field, parts in layer_slices(module, f"heads.{index}.{name}", role).items():
                slices[field] = slices.get(field, ()) + parts
    settings = settings_of(heads[0], num_heads=len(heads), owner=module)
    return WeightMap(settings, slices | output_slices(module))


def settings_of(
    module: nn.Module, num_heads: int, owner: nn.Module | None = None
) -> AttentionSettings:
    """Return the settings of a module, or of the owner of a head. A module with a buffer `mask` counts as causal."""
    dropout, mask = getattr(module, "dropout", None), getattr(module, "mask", None)
    return AttentionSettings(
        module=type(owner or module).__name__,
        num_heads=num_heads,
        causal=isinstance(mask, Tensor),
        dropout=dropout.p if isinstance(dropout, nn.Dropout) else 0.0,
        context_length=mask.shape[-1] if isinstance(mask, Tensor) else None,
    )


def call(module: nn.Module, x: Tensor, causal: bool) -> Tensor:
    """Return the module's output for x (B, T, d_in)."""
    return module(x)


def call_text(module: nn.Module, causal: bool) -> str:
    """Return the source of the call."""
    return "module(x)"


PARAMETER_ADAPTER: Adapter = Adapter(
    "a head with W_query, W_key, W_value as parameters",
    has_parameters,
    parameter_weight_map,
    call,
    call_text,
)
LINEAR_ADAPTER: Adapter = Adapter(
    "a module with W_query, W_key, W_value as nn.Linear",
    has_layers,
    linear_weight_map,
    call,
    call_text,
)
WRAPPER_ADAPTER: Adapter = Adapter(
    "a wrapper of heads with W_query, W_key, W_value",
    is_wrapper,
    wrapper_weight_map,
    call,
    call_text,
)
