"""Modules with the textbook's names W_query, W_key, W_value: as parameters, as layers, or a wrapper of heads."""

from torch import Tensor, nn

from heedful.conversion.anatomy import (
    QKV,
    Anatomy,
    Place,
    Places,
    Settings,
    layer_places,
    output_places,
)
from heedful.conversion.kind import Kind

W_NAMES = {role: f"W_{role}" for role in QKV}


def is_parameter(module: nn.Module) -> bool:
    return not hasattr(module, "num_heads") and all(
        isinstance(getattr(module, name, None), nn.Parameter) for name in W_NAMES.values()
    )


def parameter_anatomy(module: nn.Module) -> Anatomy:
    places = {role: (Place(name, transposed=True),) for role, name in W_NAMES.items()}
    return Anatomy(settings_of(module, num_heads=1), places)


def is_linear(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in W_NAMES.values())


def linear_anatomy(module: nn.Module) -> Anatomy:
    settings = settings_of(module, num_heads=getattr(module, "num_heads", 1))
    return Anatomy(settings, linear_places(module))


def linear_places(module: nn.Module) -> Places:
    places: Places = {}
    for role, name in W_NAMES.items():
        places |= layer_places(module, name, role)
    return places | output_places(module)


def is_wrapper(module: nn.Module) -> bool:
    heads = getattr(module, "heads", None)
    return isinstance(heads, nn.ModuleList) and len(heads) > 0 and all(map(is_linear, heads))


def wrapper_anatomy(module: nn.Module) -> Anatomy:
    heads = list(module.get_submodule("heads").children())
    places: Places = {}
    for index in range(len(heads)):
        for role, name in W_NAMES.items():
            for field, place in layer_places(module, f"heads.{index}.{name}", role).items():
                places[field] = places.get(field, ()) + place
    settings = settings_of(heads[0], num_heads=len(heads), owner=module)
    return Anatomy(settings, places | output_places(module))


def settings_of(module: nn.Module, num_heads: int, owner: nn.Module | None = None) -> Settings:
    """Settings as the textbook's modules keep them; the buffer `mask` is what makes one causal."""
    dropout, mask = getattr(module, "dropout", None), getattr(module, "mask", None)
    return Settings(
        module=type(owner or module).__name__,
        num_heads=num_heads,
        causal=isinstance(mask, Tensor),
        dropout=dropout.p if isinstance(dropout, nn.Dropout) else 0.0,
        context_length=mask.shape[-1] if isinstance(mask, Tensor) else None,
    )


def call(module: nn.Module, x: Tensor, causal: bool) -> Tensor:
    return module(x)


def usage(module: nn.Module, causal: bool) -> str:
    return "module(x)"


PARAMETER = Kind(
    "a head with W_query, W_key, W_value as parameters",
    is_parameter,
    parameter_anatomy,
    call,
    usage,
)
LINEAR = Kind(
    "a module with W_query, W_key, W_value as nn.Linear", is_linear, linear_anatomy, call, usage
)
WRAPPER = Kind(
    "a wrapper of heads with W_query, W_key, W_value", is_wrapper, wrapper_anatomy, call, usage
)
