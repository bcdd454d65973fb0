"""The adapters for all types of attention module that can be converted."""

from __future__ import annotations

from torch import nn

from heedful.conversion.adapters import gpt2, heedful_nn, pytorch, textbook
from heedful.conversion.adapters.adapter import AdaptedModule, Adapter
from heedful.errors import ArgumentError

ADAPTERS: tuple[Adapter, ...] = (
    pytorch.ADAPTER,
    gpt2.ADAPTER,
    heedful_nn.ADAPTER,  # before the textbook's adapters, which match its parameter names too
    textbook.WRAPPER_ADAPTER,
    textbook.PARAMETER_ADAPTER,
    textbook.LINEAR_ADAPTER,
)


def adapt(module: nn.Module, argument: str) -> AdaptedModule:
    """Find the adapter for a module, and the parameters that store its weights.

    Args:
        module: the module.
        argument: the name of the argument that it was passed as, for the error message.

    Returns:
        The module with its adapter.

    Raises:
        ArgumentError: no adapter matches, or the module has an option that no other type of module supports.
    """
    for adapter in ADAPTERS:
        if isinstance(module, nn.Module) and adapter.matches(module):
            return AdaptedModule(module, adapter, adapter.weight_map(module))
    raise ArgumentError(
        argument,
        expected="one of " + ", ".join(adapter.name for adapter in ADAPTERS),
        received=f"{type(module).__name__}, which is none of these",
        remedy="Pass the attention module itself, not the block or the model around it.",
    )
