"""The tensors and modules that a call can reach before it starts: its inputs, and what the callable refers to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from heedful.observation.leaves import leaves_of
from heedful.observation.step import Source, SourceKind


class ReachableTensors:
    """The tensors and modules that a call can reach before it starts, with their names.

    Args:
        callable: the callable about to be called.
        inputs: its positional arguments.
        keywords: its keyword arguments.

    Attributes:
        tensors: every tensor with its source. A tensor that is reachable in several ways appears once for each,
            and its first source takes precedence.
        module_paths: the dotted path of every module, by the module's ``id``.
    """

    def __init__(
        self, callable: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        self.tensors: list[tuple[Tensor, Source]] = []
        self.module_paths: dict[int, str] = {}
        arguments = list(_named_arguments(callable, inputs, keywords))
        for name, value in arguments:
            self._add("input", name, value)
        for name, value in _referenced_values(callable):
            self._add("constant", name, value)

    def _add(self, kind: SourceKind, name: str, value: object) -> None:
        if isinstance(value, Tensor):
            self.tensors.append((value, Source(kind, name)))
        elif isinstance(value, nn.Module):
            self._add_module(name, value)

    def _add_module(self, prefix: str, root: nn.Module) -> None:
        for path, module in root.named_modules(prefix=prefix):
            self.module_paths.setdefault(id(module), path)
            for kind, name, tensor in _owned_tensors(module):
                self._add(kind, f"{path}.{name}" if path else name, tensor)


def _owned_tensors(module: nn.Module) -> Iterator[tuple[SourceKind, str, Tensor]]:
    """Yield the kind, name and value of every tensor that a module holds itself, its submodules excluded."""
    for name, parameter in module.named_parameters(recurse=False):
        yield "parameter", name, parameter
    for name, buffer in module.named_buffers(recurse=False):
        yield "buffer", name, buffer
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield "attribute", name, value


def _named_arguments(
    callable: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    """Yield every leaf of the arguments with its name, such as "x", "args[0]" or "cache['keys']"."""
    function = callable.forward if isinstance(callable, nn.Module) else callable
    try:
        arguments = inspect.signature(function).bind(*inputs, **keywords).arguments
    except (TypeError, ValueError):  # a builtin without a signature, or arguments that do not fit
        arguments = {"inputs": inputs, **keywords}
    for parameter, value in arguments.items():
        for path, leaf in leaves_of(value):
            yield parameter + path, leaf


def _referenced_values(callable: Callable[..., Any]) -> Iterator[tuple[str, object]]:
    """Yield the name and value of everything that a callable holds or refers to."""
    while isinstance(callable, functools.partial):
        callable = callable.func
    if isinstance(callable, nn.Module):
        yield "", callable
    elif inspect.ismethod(callable):
        yield "", callable.__self__
    elif inspect.isfunction(callable):
        for name in callable.__code__.co_names:
            yield name, callable.__globals__.get(name)
        yield from inspect.getclosurevars(callable).nonlocals.items()
    else:
        yield from getattr(callable, "__dict__", {}).items()
