"""What a recorded call starts from: its inputs, and the modules and tensors it can reach, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from heedful.observation.trace import Source


class Surroundings:
    """Names for the tensors and modules that exist before the call.

    Attributes:
        tensors: every tensor found, with its source; one found twice comes with its first.
        paths: the dotted path of every module found, by the module's id.
    """

    def __init__(
        self, callable: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        self.tensors: list[tuple[Tensor, Source]] = []
        self.paths: dict[int, str] = {}
        arguments = list(_named_arguments(callable, inputs, keywords))
        for name, value in arguments:
            self._add("input", name, value)
        for name, value in _reachable(callable):
            self._add("constant", name, value)

    def _add(self, kind: Any, name: str, value: object) -> None:
        if isinstance(value, Tensor):
            self.tensors.append((value, Source(kind, name)))
        elif isinstance(value, nn.Module):
            self._add_module(name, value)

    def _add_module(self, prefix: str, root: nn.Module) -> None:
        for path, module in root.named_modules(prefix=prefix):
            self.paths.setdefault(id(module), path)
            attributes = ((name, it) for name, it in vars(module).items() if isinstance(it, Tensor))
            for kind, owned in (
                ("parameter", module.named_parameters(recurse=False)),
                ("buffer", module.named_buffers(recurse=False)),
                ("attribute", attributes),
            ):
                for name, tensor in owned:
                    self._add(kind, f"{path}.{name}" if path else name, tensor)


def _named_arguments(
    callable: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    """Every leaf of the arguments under its parameter's name: "x", "args[0]", "cache['keys']"."""
    signed = callable.forward if isinstance(callable, nn.Module) else callable
    try:
        bound = inspect.signature(signed).bind(*inputs, **keywords).arguments
    except (TypeError, ValueError):  # builtins have no signature, and wrong calls do not fit one
        bound = {"inputs": inputs, **keywords}
    for parameter, value in bound.items():
        leaves, _ = pytree.tree_flatten_with_path(value)
        for path, leaf in leaves:
            yield parameter + pytree.keystr(path), leaf


def _reachable(callable: Callable[..., Any]) -> Iterator[tuple[str, object]]:
    """The modules and tensors that a callable holds or refers to."""
    while isinstance(callable, functools.partial):
        callable = callable.func
    if isinstance(callable, nn.Module):
        yield "", callable
    elif inspect.ismethod(callable):
        yield "", callable.__self__
    elif inspect.isfunction(callable):
        names = callable.__code__.co_names
        yield from ((name, callable.__globals__.get(name)) for name in names)
        yield from inspect.getclosurevars(callable).nonlocals.items()
    else:
        yield from getattr(callable, "__dict__", {}).items()
